// The cross hair and what stands beside it; the switch. Begins all.
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
    lines.push(`${(levels.share[c] * 100).toFixed(1)} % full`);
    const said = ["let go by its own rule or the caller", "let go for another session", "brought back for a question"];
    for (let k = 0; k < moves.kind.length; k++) if (moves.column[k] === c)
      lines.push(`${data.lanes[moves.lane[k]]}: ${many(moves.count[k], "frame")} ${said[moves.kind[k]]}`);
    if (levels.p50[c] >= 0) lines.push(`allocation ${levels.p50[c].toFixed(1)} µs, 99 % within ${levels.p99[c].toFixed(1)} µs`);
  }
  const head = document.createElement("b");
  head.textContent = clock(begin + ((c + 0.5) / C) * (end - begin));
  tip.replaceChildren(head, document.createTextNode("\n" + lines.join("\n")));
  tip.hidden = false;
  tip.style.left = `${Math.max(0, x + 16 + tip.offsetWidth > width ? x - 16 - tip.offsetWidth : x + 16)}px`;
  tip.style.top = `${Math.max(0, Math.min(y + 14, height - tip.offsetHeight))}px`;
}

function cell({ first, last, runs, lives, sets }, part, c) {
  const row = Math.min(first.length - 1, Math.floor(part * first.length));
  const to = row + 1 < first.length ? first[row + 1] - 1 : last;
  const page = `page ${first[row]}` + (first.length < 512 || to === first[row] ? "" : ` to ${to}`);
  for (let i = 0; i < runs.row.length; i++) {
    if (runs.row[i] !== row || c < runs.start[i] || c >= runs.stop[i]) continue;
    const l = runs.life[i], kind = kinds[runs.kind[i]];
    if (kind === "cached") return [`${page}: cached`, "no session holds it; it is found if the same comes again"];
    const held = sets[runs.holders[i]].filter((session) => session);
    const whose = held.length ? `held by ${held.length > 1 ? "sessions" : "session"} ${listed(held)}` + (held.length > 1 ? ", stored once" : "") : "";
    if (kind === "reserved") return [`${page}: reserved, still empty`, whose];
    const frame = { frame: "frame", recalled: "recalled frame" }[kind];
    const name = frame && lives.index[l] >= 0 ? `${frame} ${lives.index[l]}` : { system: "instructions", probed: "a probe, a short trial", input: "input of cross-attention" }[kind] || kind;
    const out = [kind === "flight" ? `${page}: in flight, let go while a step still reads it` : `${page}: ${name}`];
    if (whose) out.push(whose);
    if (lives.time[l] >= 0) out.push(`shown at ${clock(lives.time[l])}`);
    out.push(lives.left[l] >= 0 ? `came ${clock(lives.came[l])}, left ${clock(lives.left[l])}: ${data.ends[lives.end[l]]}`
      : `came ${clock(lives.came[l])}, ${data.ends[0]} at the end`);
    out.push(`${many(lives.tokens[l], "token")} on ${many(lives.pages[l], "page")}` + (lives.sequence[l] >= 0 ? `, sequence ${lives.sequence[l]}` : ""));
    return out;
  }
  return [`${page}: free`];
}

// When the frames were shown that a question brought back, oldest first; those that the map shows.
function recalledBy(sequence) {
  const { lives } = maps.map;
  const mine = Array.from(lives.time.keys()).filter((l) => lives.sequence[l] === sequence && kinds[lives.kind[l]] === "recalled");
  return [...new Set(mine.map((l) => lives.time[l]).sort((a, b) => a - b).map(clock))];
}

function bar(lane, x) {
  for (let i = bars.lane.length - 1; i >= 0; i--) {
    const x0 = xOf(bars.from[i]), x1 = Math.max(xOf(bars.to[i]), x0 + 2);
    if (bars.lane[i] !== lane || x < x0 - 2 || x > x1 + 2) continue;
    const session = bars.session[i] ? `session ${bars.session[i]}` : "no session";
    const out = [{
      [CONTEXT]: session,
      [FORK]: `${session}, a fork of sequence ${bars.parent[i]}`,
      [QUESTION]: `question to ${session}`,
      [RECALLING]: `question to ${session} that brought old frames back`,
      [PROBE]: "a probe, a short trial",
    }[bars.role[i]]];
    out.push(`${clock(bars.from[i])} to ${clock(bars.to[i])}, sequence ${bars.sequence[i]}`);
    if (bars.role[i] === RECALLING) out.push(`frames shown at ${listed(recalledBy(bars.sequence[i]))}`);
    if (bars.tokens[i]) out.push(`${many(bars.tokens[i], "token")} of answer`);
    return out;
  }
  return ["nothing here"];
}

document.querySelectorAll("input[name=by]").forEach((input) => input.addEventListener("change", () => {
  by = input.value;
  for (const way of ["kind", "session"]) document.getElementById(`by-${way}`).hidden = by !== way;
  draw();
}));
plot.addEventListener("pointermove", hover);
plot.addEventListener("pointerleave", () => { tip.hidden = true; prepare(cross); });
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
