// Draws all panels on one canvas. What a page map is coloured by can be switched.
const plot = document.getElementById("plot"), tip = document.getElementById("tip");
const picture = document.getElementById("picture"), cross = document.getElementById("cross");
const pad = { left: 66, right: 14 };
let panels = [], width = 0, height = 0, color = {};

let by = "kind"; // what the page map is coloured by, or "session"

const inner = () => width - pad.left - pad.right;
const xOf = (seconds) => pad.left + ((seconds - begin) / (end - begin)) * inner();
const xCol = (column) => pad.left + (column / C) * inner();

function layout() {
  width = plot.clientWidth;
  const heights = { used: 64, hits: 40, share: 48, alloc: 96 };
  for (const id in maps) heights[id] = id === "map" ? 420 : 96;
  heights.lanes = Math.min(data.lanes.length, 8) * 26;
  heights.left = Math.max(Math.min(data.sessions.length, 8) * 34, 48);
  let y = 0;
  panels = [];
  for (const id in data.panels) {
    y += 26;
    const title = id === "map" && by === "session" ? data.whose : data.panels[id];
    panels.push({ id, title, y, h: heights[id] });
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
    "answer", "cached", "recalled", "probed", "input", "reserved", "evict", "forced", "level", "flight", "line",
    "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"]) color[name] = style.getPropertyValue(`--${name}`).trim();
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

function laneNames(g, p, names) {
  const h = p.h / names.length;
  if (h >= 14) names.forEach((name, lane) => label(g, name, p.y + lane * h + 8));
}

const paint = {
  map: pageMap,
  inputs: pageMap,
  // In each lane frames that left hang from a line, those that came back stand on it.
  left(g, p) {
    const both = moves.kind.includes(BACK), h = p.h / data.sessions.length, room = h - 4;
    const below = both ? room / 2 : room, scale = below / data.most_moved;
    const zero = (lane) => p.y + lane * h + 2 + room - below;
    g.fillStyle = both ? color.muted : color.grid;
    data.sessions.forEach((_, lane) => g.fillRect(pad.left, zero(lane), inner(), 1));
    for (let k = 0; k < moves.kind.length; k++) {
      const kind = moves.kind[k], high = moves.count[k] * scale, at = zero(moves.lane[k]) + moves.base[k] * scale;
      g.fillStyle = color[["evict", "forced", "recalled"][kind]];
      g.fillRect(xCol(moves.column[k]), kind === BACK ? at - high : at, 3, high);
    }
    laneNames(g, p, data.sessions);
  },
  lanes(g, p) {
    const h = p.h / data.lanes.length, high = h * 0.54;
    for (let i = 0; i < bars.lane.length; i++) {
      const role = bars.role[i], top = p.y + bars.lane[i] * h + 1;
      const rect = (from, to, y, high, least) => g.fillRect(xOf(from), y, Math.max(xOf(to) - xOf(from), least), high);
      if (role > FORK) {
        g.fillStyle = color[role === PROBE ? "probed" : "text"];
        rect(bars.from[i], bars.to[i], role === PROBE ? top : top + high + 1, h * 0.31, 3);
        continue;
      }
      g.fillStyle = color[sessionColor(bars.session[i])];
      g.globalAlpha = 0.3;
      rect(bars.from[i], bars.to[i], top, high, 1.6);
      g.globalAlpha = 1;
      if (bars.busy_from[i] >= begin) rect(bars.busy_from[i], bars.busy_to[i], top, high, 1.6);
    }
    laneNames(g, p, data.lanes);
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
    steps(g, p, levels.share, (v) => (v - low) / (1 - low), color.line);
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
      if (e === to || e === from || p.h / (to - from) > 15) label(g, name, e === to ? y + 6 : e === from ? y - 5 : y);
    }
    steps(g, p, levels.p50, part, color.line);
    g.fillStyle = color.ink;
    for (let c = 0; c < C; c++) if (levels.p99[c] > 1.2 * levels.p50[c])
      g.fillRect(xCol(c) - 1.5, p.y + (p.h - 4) * (1 - part(levels.p99[c])), 4, 4);
  },
};

function pageMap(g, p) {
  const map = maps[p.id], { first, last, runs, lives } = map, R = first.length, h = p.h / R;
  label(g, `page ${first[0]}`, p.y + 6);
  if (R > 2) label(g, String(first[Math.floor(R / 2)]), p.y + p.h / 2);
  if (last !== first[0]) label(g, String(last), p.y + p.h - 6);
  const fill = by === "session" && p.id === "map" ? holderFill(g, map) : kindFill(g, map);
  const isBrief = (i) => brief.includes(kinds[runs.kind[i]]);
  const order = Array.from(runs.life.keys()).sort((a, b) => isBrief(a) - isBrief(b) || runs.life[a] - runs.life[b]);
  // Rows that are thinner than a line meet on whole pixels, or light seams would show.
  const isThin = h <= 2.5, high = isThin ? Math.ceil(h) : h - 0.5;
  for (const i of order) {
    const kind = kinds[runs.kind[i]], x = xCol(runs.start[i]), at = p.y + runs.row[i] * h, y = isThin ? Math.floor(at) : at;
    const wide = Math.max(xCol(runs.stop[i]) - x, kind === "recalled" ? 5 : isBrief(i) ? 3 : 0);
    if (kind === "recalled") { g.fillStyle = color.bg; g.fillRect(x - 1, y, wide + 2, high); }
    g.fillStyle = fill(i);
    g.fillRect(x, y, wide, high);
    if (by === "session" && p.id === "map" && isBrief(i)) {
      g.fillStyle = color.ink;
      for (const edge of [x, x + wide - 1]) g.fillRect(edge, y, 1, high);
    } else if (by === "session" && wide > 5) { g.fillStyle = color.bg; g.globalAlpha = 0.5; g.fillRect(x, y, 1, high); g.globalAlpha = 1; }
  }
}

// By what a page holds: frames fade for as long as they usually stay.
function kindFill(g, { runs, lives }) {
  const life = data.window_s || end - begin, reserved = stripes(g, [color.free, color.reserved]);
  let made = -1, fade = null;
  return (i) => {
    const l = runs.life[i], kind = kinds[runs.kind[i]];
    if (kind === "reserved") return reserved;
    if (kind !== "frame") return color[kind];
    if (l !== made) {
      const x = xOf(lives.came[l]);
      fade = g.createLinearGradient(x, 0, x + Math.max((life / (end - begin)) * inner(), 1), 0);
      fade.addColorStop(0, color["frame-new"]);
      fade.addColorStop(1, color["frame-old"]);
      made = l;
    }
    return fade;
  };
}

// By who holds it: stripes of all their colours where several do.
function holderFill(g, { runs, sets }) {
  const made = new Map();
  return (i) => {
    const kind = kinds[runs.kind[i]], number = runs.holders[i];
    if (kind === "cached" || kind === "flight") return color[kind];
    if (!made.has(number)) made.set(number, stripes(g, sets[number].map((session) => color[sessionColor(session)])));
    return made.get(number);
  };
}

function stripes(g, colours) {
  if (colours.length < 2) return colours[0] || color.free;
  const wide = 5, size = wide * colours.length, tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const t = tile.getContext("2d");
  for (let y = 0; y < size; y++) for (let x = 0; x < size; x++) {
    t.fillStyle = colours[Math.floor(((x + y) % size) / wide)];
    t.fillRect(x, y, 1, 1);
  }
  return g.createPattern(tile, "repeat");
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

// Each value holds from its column to the next that has one.
function steps(g, p, values, part, stroke) {
  g.strokeStyle = stroke;
  g.lineWidth = 1.5;
  g.beginPath();
  let last = NaN;
  for (let c = 0; c < C; c++) {
    if (!(values[c] >= 0)) continue;
    const y = p.y + 2 + (p.h - 4) * (1 - Math.max(0, Math.min(1, part(values[c]))));
    if (last === last) { g.lineTo(xCol(c), last); g.lineTo(xCol(c), y); } else g.moveTo(xCol(c), y);
    last = y;
  }
  if (last === last) g.lineTo(xCol(C), last);
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
