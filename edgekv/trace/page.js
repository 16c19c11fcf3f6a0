"use strict";
// Draws what the "data" element holds: all panels on one canvas, the cross hair on another.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const types = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array };
  const array = ([type, text]) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new types[type](bytes.buffer);
  };
  const arrays = (from) => Object.fromEntries(Object.entries(from).map(([key, packed]) => [key, array(packed)]));
  const levels = arrays(data.levels), bars = arrays(data.bars), maps = {};
  for (const id in data.maps) {
    const { first, last, runs, lives } = data.maps[id];
    maps[id] = { first: array(first), last, runs: arrays(runs), lives: arrays(lives) };
  }
  const C = data.columns, begin = data.begin, end = data.end, kinds = data.kinds;
  const [CONTEXT, FORK, QUESTION, PROBE] = [0, 1, 2, 3], roles = ["context", "fork", "question", "a tier’s probe"];
  const brief = ["text", "answer", "recalled", "probed"];
  const plot = document.getElementById("plot"), tip = document.getElementById("tip");
  const picture = document.getElementById("picture"), cross = document.getElementById("cross");
  const pad = { left: 66, right: 14 };
  let panels = [], width = 0, height = 0, color = {};

  const clock = (s) => {
    if (!(Math.abs(s) < 1e12)) return "?";
    const whole = Math.floor(s), h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
    const rest = (s - Math.floor(whole / 60) * 60).toFixed(end - begin < 600 ? 1 : 0);
    const two = rest.padStart(end - begin < 600 ? 4 : 2, "0");
    return h ? `${h}:${String(m).padStart(2, "0")}:${two}` : `${m}:${two}`;
  };
  const many = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
  const inner = () => width - pad.left - pad.right;
  const xOf = (seconds) => pad.left + ((seconds - begin) / (end - begin)) * inner();
  const xCol = (column) => pad.left + (column / C) * inner();

  function layout() {
    width = plot.clientWidth;
    const heights = { left: 40, used: 64, hits: 40, share: 48, alloc: 64 };
    for (const id in maps) heights[id] = id === "map" ? 420 : 96;
    heights.lanes = Math.max(18, Math.min(data.lanes.length, 8) * 16);
    let y = 0;
    panels = [];
    for (const id in data.panels) {
      y += 26;
      panels.push({ id, title: data.panels[id], y, h: heights[id] });
      y += heights[id];
    }
    height = y + 40;
  }

  function prepare(canvas) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    return g;
  }

  function draw() {
    layout();
    const style = getComputedStyle(document.documentElement);
    for (const name of ["bg", "ink", "muted", "grid", "free", "system", "frame-new", "frame-old", "text",
      "answer", "cached", "recalled", "probed", "input", "evict", "level", "flight", "line"]) color[name] = style.getPropertyValue(`--${name}`).trim();
    const g = prepare(picture);
    prepare(cross);
    const font = getComputedStyle(document.body).fontFamily;
    g.textBaseline = "middle";
    for (const p of panels) {
      g.fillStyle = color.free;
      g.fillRect(pad.left, p.y, inner(), p.h);
      g.font = `600 13px ${font}`;
      g.textAlign = "left";
      g.fillStyle = color.ink;
      g.fillText(p.title, pad.left, p.y - 11);
      g.font = `12px ${font}`;
      paint[p.id](g, p);
    }
    axis(g);
  }

  function label(g, text, y) {
    g.textAlign = "right";
    g.fillStyle = color.muted;
    g.fillText(text, pad.left - 8, y);
  }

  function grid(g, p, y) {
    g.fillStyle = color.grid;
    g.fillRect(pad.left, Math.round(y), inner(), 1);
  }

  const paint = {
    map: pageMap,
    inputs: pageMap,
    left(g, p) {
      const most = Math.max(1, ...levels.left);
      label(g, String(most), p.y + 6);
      label(g, "0", p.y + p.h - 5);
      g.fillStyle = color.evict;
      for (let c = 0; c < C; c++) if (levels.left[c]) {
        const h = Math.max(2, (levels.left[c] / most) * (p.h - 4));
        g.fillRect(xCol(c), p.y + p.h - h, Math.max(inner() / C, 1.6), h);
      }
    },
    lanes(g, p) {
      const h = p.h / data.lanes.length;
      const fill = { [CONTEXT]: "frame-new", [FORK]: "flight", [QUESTION]: "answer", [PROBE]: "probed" };
      for (let i = 0; i < bars.lane.length; i++) {
        g.fillStyle = color[fill[bars.role[i]]];
        const rect = (from, to) => g.fillRect(xOf(from), p.y + bars.lane[i] * h + 2, Math.max(xOf(to) - xOf(from), 1.6), h - 4);
        g.globalAlpha = bars.role[i] <= FORK ? 0.25 : 1;
        rect(bars.from[i], bars.to[i]);
        g.globalAlpha = 1;
        if (bars.busy_from[i] >= begin) rect(bars.busy_from[i], bars.busy_to[i]);
      }
      if (h >= 14) data.lanes.forEach((name, lane) => label(g, name, p.y + (lane + 0.5) * h));
    },
    used(g, p) {
      area(g, p, levels.used.map((used, c) => used + levels.cached[c]), data.most, color.cached);
      area(g, p, levels.used, data.most, color.level);
      area(g, p, levels.flight, data.most, color.flight);
      label(g, String(data.most), p.y + 6);
      label(g, "0", p.y + p.h - 5);
    },
    hits(g, p) {
      const B = levels.hits.length;
      for (let k = 0; k < B; k++) if (levels.hits[k] >= 0) {
        const x0 = pad.left + (k / B) * inner(), h = levels.hits[k] * p.h;
        g.fillStyle = color.grid;
        g.fillRect(x0, p.y, inner() / B, p.h);
        g.fillStyle = color.line;
        g.fillRect(x0, p.y + p.h - h, inner() / B, h);
      }
      label(g, "100 %", p.y + 6);
      label(g, "0 %", p.y + p.h - 5);
    },
    share(g, p) {
      const low = data.share_from;
      grid(g, p, p.y + p.h / 2);
      line(g, p, levels.share, (v) => (v - low) / (1 - low), color.line);
      label(g, "100 %", p.y + 6);
      label(g, `${Math.round(low * 100)} %`, p.y + p.h - 5);
    },
    alloc(g, p) {
      let high = 1, low = Infinity;
      for (let c = 0; c < C; c++) {
        if (levels.p99[c] > high) high = levels.p99[c];
        if (levels.p50[c] < low) low = levels.p50[c];
      }
      const from = Math.floor(Math.log10(Math.max(Math.min(low, high), 0.1))), to = Math.max(Math.ceil(Math.log10(high)), from + 1);
      const part = (v) => (Math.log10(Math.max(v, 0.1)) - from) / (to - from);
      for (let e = from; e <= to; e++) {
        const y = p.y + p.h * (1 - (e - from) / (to - from));
        if (e > from && e < to) grid(g, p, y);
        const name = e < 3 ? `${10 ** e} µs` : e < 6 ? `${10 ** (e - 3)} ms` : `${10 ** (e - 6)} s`;
        if (e === to || e === from || p.h / (to - from) > 20) label(g, name, e === to ? y + 6 : e === from ? y - 5 : y);
      }
      g.fillStyle = color.muted;
      for (let c = 0; c < C; c++) if (levels.p99[c] >= 0)
        g.fillRect(xCol(c) - 0.75, p.y + p.h * (1 - part(levels.p99[c])) - 0.75, 1.5, 1.5);
      line(g, p, levels.p50, part, color.line);
    },
  };

  function pageMap(g, p) {
    const { first, last, runs, lives } = maps[p.id], R = first.length;
    label(g, `page ${first[0]}`, p.y + 6);
    if (R > 2) label(g, String(first[Math.floor(R / 2)]), p.y + p.h / 2);
    if (last !== first[0]) label(g, String(last), p.y + p.h - 6);
    const life = data.window_s || end - begin, h = p.h / R;
    let made = -1;
    const order = Array.from(runs.life.keys()).sort((a, b) => runs.life[a] - runs.life[b]);
    for (const i of order) {
      const l = runs.life[i], kind = kinds[lives.kind[l]];
      if (kind === "frame") {
        if (l !== made) {
          const x = xOf(lives.came[l]);
          const fade = g.createLinearGradient(x, 0, x + Math.max((life / (end - begin)) * inner(), 1), 0);
          fade.addColorStop(0, color["frame-new"]);
          fade.addColorStop(1, color["frame-old"]);
          g.fillStyle = fade;
          made = l;
        }
      } else { g.fillStyle = color[kind]; made = -1; }
      const x0 = xCol(runs.start[i]), x1 = xCol(runs.stop[i]);
      const wide = brief.includes(kind) ? Math.max(x1 - x0, 1.5) : x1 - x0;
      g.fillRect(x0, p.y + runs.row[i] * h, wide, h > 2.5 ? h - 0.5 : h);
    }
  }

  function area(g, p, values, most, fill) {
    g.fillStyle = fill;
    g.beginPath();
    g.moveTo(pad.left, p.y + p.h);
    for (let c = 0; c < C; c++) {
      const y = p.y + p.h * (1 - values[c] / most);
      g.lineTo(xCol(c), y);
      g.lineTo(xCol(c + 1), y);
    }
    g.lineTo(xCol(C), p.y + p.h);
    g.fill();
  }

  function line(g, p, values, part, stroke) {
    g.strokeStyle = stroke;
    g.lineWidth = 1.5;
    g.beginPath();
    let drawn = false;
    for (let c = 0; c < C; c++) {
      if (!(values[c] >= 0)) continue;
      const y = p.y + 2 + (p.h - 4) * (1 - Math.max(0, Math.min(1, part(values[c]))));
      if (drawn) g.lineTo(xCol(c + 0.5), y); else g.moveTo(xCol(c + 0.5), y);
      drawn = true;
    }
    g.stroke();
  }

  function axis(g) {
    const bottom = panels[panels.length - 1].y + panels[panels.length - 1].h;
    g.textAlign = "center";
    let free = -1e9;
    for (const [at, text] of data.ticks) {
      const x = xOf(at);
      g.fillStyle = color.grid;
      for (const p of panels) g.fillRect(x, p.y + p.h, 1, 4);
      const half = g.measureText(text).width / 2;
      if (x - half < free || x + half > width) continue;
      free = x + half + 14;
      g.fillStyle = color.muted;
      g.fillText(text, x, bottom + 14);
    }
    g.fillStyle = color.ink;
    g.fillText(data.axis, pad.left + inner() / 2, bottom + 32);
  }

  function hover(event) {
    const box = picture.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const g = prepare(cross);
    if (x < pad.left || x >= width - pad.right || y < 0 || y > height) { tip.hidden = true; return; }
    const c = Math.min(C - 1, Math.floor(((x - pad.left) / inner()) * C));
    const top = panels[0].y, bottom = panels[panels.length - 1].y + panels[panels.length - 1].h;
    g.fillStyle = color.ink;
    g.fillRect(x, top, 1, bottom - top);
    const lines = [];
    const over = panels.find((p) => y >= p.y && y < p.y + p.h);
    if (over && maps[over.id]) lines.push(...cell(maps[over.id], (y - over.y) / over.h, c));
    else if (over && over.id === "lanes") lines.push(...bar(Math.floor(((y - over.y) / over.h) * data.lanes.length), x));
    else {
      lines.push(`${levels.used[c]} of ${many(data.pages, "page")} in use, ${levels.flight[c]} in flight, ${levels.cached[c]} cached`);
      lines.push(`utilisation ${(levels.share[c] * 100).toFixed(1)} %`);
      if (levels.left[c]) lines.push(`${many(levels.left[c], "frame")} evicted here`);
      if (levels.p50[c] >= 0) lines.push(`allocation ${levels.p50[c].toFixed(1)} µs, 99 % within ${levels.p99[c].toFixed(1)} µs`);
    }
    const head = document.createElement("b");
    head.textContent = clock(begin + ((c + 0.5) / C) * (end - begin));
    tip.replaceChildren(head, document.createTextNode("\n" + lines.join("\n")));
    tip.hidden = false;
    tip.style.left = `${Math.max(0, x + 16 + tip.offsetWidth > width ? x - 16 - tip.offsetWidth : x + 16)}px`;
    tip.style.top = `${Math.max(0, Math.min(y + 14, height - tip.offsetHeight))}px`;
  }

  function cell({ first, last, runs, lives }, part, c) {
    const row = Math.min(first.length - 1, Math.floor(part * first.length));
    const to = row + 1 < first.length ? first[row + 1] - 1 : last;
    const page = `page ${first[row]}` + (first.length < 512 || to === first[row] ? "" : ` to ${to}`);
    for (let i = 0; i < runs.row.length; i++) {
      if (runs.row[i] !== row || c < runs.start[i] || c >= runs.stop[i]) continue;
      const l = runs.life[i], kind = kinds[lives.kind[l]];
      if (kind === "cached") return [`${page}: cached, held by nobody, found if the same comes again`];
      const frame = { frame: "frame", recalled: "recalled frame" }[kind];
      const name = frame && lives.index[l] >= 0 ? `${frame} ${lives.index[l]}` : { probed: "a tier’s probe", input: "input of cross-attention" }[kind] || kind;
      const out = [`${page}: ${name}`];
      if (lives.time[l] >= 0) out.push(`shown at ${clock(lives.time[l])}`);
      out.push(lives.left[l] >= 0 ? `came ${clock(lives.came[l])}, left ${clock(lives.left[l])}: ${data.ends[lives.end[l]]}`
        : `came ${clock(lives.came[l])}, ${data.ends[0]} at the end`);
      out.push(`${many(lives.tokens[l], "token")} on ${many(lives.pages[l], "page")}` + (lives.sequence[l] >= 0 ? `, sequence ${lives.sequence[l]}` : ""));
      return out;
    }
    return [`${page}: free`];
  }

  function bar(lane, x) {
    for (let i = bars.lane.length - 1; i >= 0; i--) {
      const x0 = xOf(bars.from[i]), x1 = Math.max(xOf(bars.to[i]), x0 + 2);
      if (bars.lane[i] !== lane || x < x0 - 2 || x > x1 + 2) continue;
      const what = roles[bars.role[i]];
      const out = [`${what}: sequence ${bars.sequence[i]}` + (bars.parent[i] >= 0 ? `, fork of ${bars.parent[i]}` : "")];
      out.push(`${clock(bars.from[i])} to ${clock(bars.to[i])}`);
      if (bars.tokens[i]) out.push(`${many(bars.tokens[i], "token")} of answer`);
      return out;
    }
    return ["no sequence in this row"];
  }

  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerleave", () => { tip.hidden = true; prepare(cross); });
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
