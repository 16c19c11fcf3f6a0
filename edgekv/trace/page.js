"use strict";
// Draws what the "data" element holds: all panels on one canvas, the cross hair on another.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const types = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array };
  const array = ([type, text]) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new types[type](bytes.buffer);
  };
  const runs = {}, lives = {}, levels = {}, bars = {};
  for (const [into, from] of [[runs, data.runs], [lives, data.lives], [levels, data.levels], [bars, data.bars]])
    for (const key in from) into[key] = array(from[key]);
  const C = data.columns, R = data.rows, begin = data.begin, end = data.end;
  const kinds = ["system", "frame", "text", "answer", "cached"];
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
    const map = Math.round(Math.max(240, Math.min(440, R * 3)));
    const lanes = Math.max(18, Math.min(data.lanes, 8) * 16);
    let y = 0;
    panels = [];
    const add = (id, title, h) => { y += 26; panels.push({ id, title, y, h }); y += h; };
    add("map", "Page map: what each page of the pool holds", map);
    add("left", "Frames evicted", 40);
    add("lanes", data.questions ? "Contexts and forks; questions in the last row" : "Contexts and forks", lanes);
    add("used", "Pages in use, and cached", 64);
    add("share", "Utilisation: slots of live pages that hold a token", 48);
    add("alloc", "Allocation latency: median line, 99th percentile dots", 64);
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
      "answer", "cached", "evict", "level", "flight", "line"]) color[name] = style.getPropertyValue(`--${name}`).trim();
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
    map(g, p) {
      const last = data.pages - 1;
      label(g, "page 0", p.y + 6);
      label(g, String(Math.round(last / 2)), p.y + p.h / 2);
      label(g, String(last), p.y + p.h - 6);
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
        const wide = kind === "text" || kind === "answer" ? Math.max(x1 - x0, 1.5) : x1 - x0;
        g.fillRect(x0, p.y + runs.row[i] * h, wide, h > 2.5 ? h - 0.5 : h);
      }
    },
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
      const h = p.h / data.lanes;
      for (let i = 0; i < bars.lane.length; i++) {
        g.fillStyle = bars.question[i] ? color.answer : bars.parent[i] >= 0 ? color.flight : color["frame-new"];
        const x0 = xOf(bars.from[i]), x1 = xOf(bars.to[i]);
        g.fillRect(x0, p.y + bars.lane[i] * h + 2, Math.max(x1 - x0, 1.6), h - 4);
      }
      if (data.questions) label(g, "asked", p.y + p.h - h / 2);
      const contexts = data.lanes - (data.questions ? 1 : 0);
      for (let lane = 0; lane < contexts; lane++) label(g, String(lane + 1), p.y + (lane + 0.5) * h);
    },
    used(g, p) {
      area(g, p, levels.used.map((used, c) => used + levels.cached[c]), data.pages, color.cached);
      area(g, p, levels.used, data.pages, color.level);
      area(g, p, levels.flight, data.pages, color.flight);
      label(g, String(data.pages), p.y + 6);
      label(g, "0", p.y + p.h - 5);
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
    const map = panels[0], lanes = panels.find((p) => p.id === "lanes");
    if (y >= map.y && y < map.y + map.h) lines.push(...cell(Math.floor(((y - map.y) / map.h) * R), c));
    else if (y >= lanes.y && y < lanes.y + lanes.h) lines.push(...bar(Math.floor(((y - lanes.y) / lanes.h) * data.lanes), x));
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

  function cell(row, c) {
    const first = Math.ceil((row * data.pages) / R), last = Math.ceil(((row + 1) * data.pages) / R) - 1;
    const page = first >= last ? `page ${first}` : `pages ${first} to ${last}`;
    for (let i = 0; i < runs.row.length; i++) {
      if (runs.row[i] !== row || c < runs.start[i] || c >= runs.stop[i]) continue;
      const l = runs.life[i], kind = kinds[lives.kind[l]];
      if (kind === "cached") return [`${page}: cached, held by nobody, found if the same comes again`];
      const name = kind === "frame" && lives.index[l] >= 0 ? `frame ${lives.index[l]}` : kind;
      const out = [`${page}: ${name}`];
      if (lives.time[l] >= 0) out.push(`shown at ${clock(lives.time[l])}`);
      out.push(lives.left[l] >= 0 ? `came ${clock(lives.came[l])}, left ${clock(lives.left[l])}: ${data.ends[lives.end[l]]}`
        : `came ${clock(lives.came[l])}, ${data.ends[0]} at the end`);
      out.push(`${many(lives.tokens[l], "token")} on ${many(lives.pages[l], "page")}, sequence ${lives.sequence[l]}`);
      return out;
    }
    return [`${page}: free`];
  }

  function bar(lane, x) {
    for (let i = bars.lane.length - 1; i >= 0; i--) {
      const x0 = xOf(bars.from[i]), x1 = Math.max(xOf(bars.to[i]), x0 + 2);
      if (bars.lane[i] !== lane || x < x0 - 2 || x > x1 + 2) continue;
      const what = bars.question[i] ? "question" : bars.parent[i] >= 0 ? "fork" : "context";
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
