"use strict";
// What the "data" element holds, unpacked, and numbers as text. Times are seconds on the axis.
const data = JSON.parse(document.getElementById("data").textContent);
const types = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array };
const array = ([type, text]) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new types[type](bytes.buffer);
};
const arrays = (from) => Object.fromEntries(Object.entries(from).map(([key, packed]) => [key, array(packed)]));
const levels = arrays(data.levels), bars = arrays(data.bars), moves = arrays(data.moves), maps = {};
for (const id in data.maps) {
  const { first, last, runs, lives, sets } = data.maps[id];
  maps[id] = { first: array(first), last, runs: arrays(runs), lives: arrays(lives), sets };
}
const C = data.columns, begin = data.begin, end = data.end, kinds = data.kinds;
const [CONTEXT, FORK, QUESTION, RECALLING, PROBE] = [0, 1, 2, 3, 4];
const [CHOSEN, FORCED, BACK] = [0, 1, 2]; // why frames move
const brief = ["text", "answer", "recalled", "probed"];

const clock = (s) => {
  if (!(Math.abs(s) < 1e12)) return "?";
  const whole = Math.floor(s), h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
  const rest = (s - Math.floor(whole / 60) * 60).toFixed(end - begin < 600 ? 1 : 0);
  const two = rest.padStart(end - begin < 600 ? 4 : 2, "0");
  return h ? `${h}:${String(m).padStart(2, "0")}:${two}` : `${m}:${two}`;
};
const many = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
const listed = (items) => items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items[items.length - 1]}`;
// Of a session, by its number; of what is nobody's, 0.
const sessionColor = (session) => session ? `s${(session - 1) % data.session_colours + 1}` : "probed";
