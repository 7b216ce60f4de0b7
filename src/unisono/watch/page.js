"use strict";
// One message a second: `state` is all of it, the rest is what is new. Nothing is kept elsewhere.
const MANY = 32;             // learners above which cards are small
const MOST_ROUNDS = 4000;
const RECENT_S = 120;
const $ = (id) => document.getElementById(id);
const data = { state: null, heldout: [], train: [], lives: [], rounds: [] };
const cards = new Map();
let chosen = null;           // the learner whose card is shown large, among many
let whole = false;           // the timeline's range

function make(tag, kind, text) {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  if (text !== undefined) node.textContent = text;
  return node;
}
function set(node, text) { if (node.textContent !== text) node.textContent = text; }

// Requests to the run: with the token of the address that unisono has printed, never without it.
const KEPT = "unisono-token";
function findToken() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (found) history.replaceState(null, "", location.pathname);
  try {  // a browser may refuse to keep anything
    if (found) sessionStorage.setItem(KEPT, found[1]);
    return found ? found[1] : sessionStorage.getItem(KEPT);
  } catch { return found ? found[1] : null; }
}
const token = findToken();
const offers = (action) => Boolean(token) && Boolean(data.state) && data.state.actions.includes(action);
const QUESTIONS = {
  stop: () => "End the run after its next checkpoint? It can be resumed.",
  remove: (learner) => `Remove learner ${learner} from the run? It will not be replaced.`,
};
function answered(text, bad) {
  $("answer").className = bad ? "bad" : "";
  set($("answer"), text);
}
async function ask(action, learner) {
  if (QUESTIONS[action] && !confirm(QUESTIONS[action](learner))) return;
  answered("waiting for the run …", false);
  try {
    const response = await fetch("control", { method: "POST", body: JSON.stringify({ action, learner }),
      headers: { "Content-Type": "application/json", "X-Unisono-Token": token } });
    if (!response.ok) { answered((await response.text()).trim(), true); return; }
    const answer = await response.json();
    answered(answer.text, !answer.done);
    if (answer.stack) {
      set($("stack").querySelector("figcaption span"), `Stacks of learner ${learner} at ${clock(data.state.time)}, most recent call first`);
      set($("stack").querySelector("pre"), answer.stack);
      $("stack").hidden = false;
    }
  } catch { answered("the page's server cannot be reached", true); }
}
function showControls(state) {
  const buttons = [...$("controls").querySelectorAll("button")];
  for (const button of buttons) button.hidden = !offers(button.dataset.action);
  const none = buttons.every((button) => button.hidden);
  $("controls").hidden = !token;
  if (none && token && !$("answer").textContent) answered("No buttons: " + state.why_none + ".", false);
  else if (!none && $("answer").textContent.startsWith("No buttons")) answered("", false);
}

// Numbers for people.
const percent = (share, digits = 0) => share == null ? "–" : (100 * share).toFixed(digits) + " %";
function short(value) {
  if (value == null) return "–";
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + " " + letter;
  return String(Number(value.toPrecision(3)));
}
function span(seconds) {
  if (seconds < 60) return (seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
  return Math.floor(seconds / 3600) + " h " + Math.floor(seconds % 3600 / 60) + " min";
}
function clock(seconds) {
  const t = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
  return (t >= 3600 ? Math.floor(t / 3600) + ":" : "") + two(Math.floor(t % 3600 / 60)) + ":" + two(t % 60);
}
const signed = (value, digits) => value == null ? "–" : value.toFixed(digits).replace("-", "−");

// The head of the page.
function showHead(state) {
  const stages = { starting: "starting", running: "running", quiet: "no news for " + span(state.quiet_s),
    finished: state.stopped ? "stopped on request" : "finished", failed: "failed" };
  $("stage").className = "pill " + state.stage;
  set($("stage"), stages[state.stage] + (state.simulated ? ", simulated" : ""));
  set($("strategy"), state.lines.map((line) => line.replace(/\s+/g, " ")).slice(0, 3).join(" · "));
  const progress = state.stage === "finished" && !state.stopped ? 1 : state.progress;
  $("bar").firstElementChild.style.width = 100 * progress + "%";
  $("bar").setAttribute("aria-valuenow", String(Math.round(100 * progress)));
  showVerdict(state);
  showControls(state);
  const tiles = [
    [percent(progress, 1), "progress"],
    [clock(state.time), state.simulated ? "virtual time" : "wall-clock"],
    [String(state.stage === "finished" ? state.learners.length : state.here), "learners"],
    [short(state.rate), "examples a second"],
    [short(state.examples), "examples trained"],
    [short(state.rounds), "rounds"],
    [String(state.lost), "learners lost"],
    [signed(state.logprob, 4), "held-out log-prob"],
    [percent(state.accuracy, 2), "held-out accuracy"],
  ];
  const box = $("tiles");
  while (box.children.length < tiles.length) {
    const tile = make("div", "tile");
    tile.append(make("b"), make("span"));
    box.append(tile);
  }
  tiles.forEach(([value, name], i) => { set(box.children[i].children[0], value); set(box.children[i].children[1], name); });
}

function slowText(each) {
  const where = each.host ? " on " + each.host : "";
  const silent = each.silent_s == null ? "" : "; not heard of for " + span(each.silent_s);
  return `learner ${each.learner}${where} computes at ${each.ratio.toFixed(2)} times the others' speed`
    + `, for ${span(each.for_s)}${silent}`;
}
function showVerdict(state) {
  const live = state.stage === "running" || state.stage === "quiet";
  let text = "", kind = "";
  if (state.stage === "failed") {
    text = "The run failed: " + state.reason; kind = "bad";
  } else if (state.slow.length) {
    text = "Slowest: " + slowText(state.slow[0]); kind = "bad";
    if (state.slow.length > 1) text += "; slow, too: " + state.slow.slice(1, 6).map((s) => "learner " + s.learner).join(", ");
    if (state.slow.length > 6) text += ` and ${state.slow.length - 6} more`;
  } else if (live && state.slowest != null) {
    const row = state.learners.find((each) => each.n === state.slowest);
    text = `No learner is slow; slowest: learner ${row.n} with ${row.ratio.toFixed(2)} times the others' speed`; kind = "good";
  } else if (state.stage === "finished") {
    const row = state.learners.find((each) => each.n === state.slowest);
    text = (state.stopped ? "The run was stopped" : "The run has finished") + (row ? `; slowest: learner ${row.n} with ${row.ratio.toFixed(2)} times the others' speed.` : ".");
  } else if (state.stage === "starting") {
    text = "Waiting for the learners to join.";
  }
  $("verdict").className = kind;
  set($("slow"), text);
  const link = state.links[0];
  $("link").hidden = !link;
  if (link) set($("link"), `Slowest link: ${link.from} to ${link.to}, ${short(link.rate)}B/s`
    + (state.links.length > 1 ? "; next: " + state.links.slice(1, 4).map((l) => `${l.from} to ${l.to}, ${short(l.rate)}B/s`).join("; ") : ""));
  const notes = [];
  if (state.behind) notes.push("still reading the metrics of this run");
  if (state.malformed) notes.push(`${state.malformed} lines of the metrics could not be read`);
  $("note").hidden = !notes.length;
  set($("note"), notes.join("; "));
}

// Leases.
function showPool(pool) {
  const box = $("pool"), names = ["committed", "leased", "free", "redone", "returned", "skipped", "dropped"];
  if (!("total" in pool) || !pool.total) { set($("poolnote"), "This run's metrics tell nothing of its leases."); return; }
  if (!box.children.length) {
    const stack = make("div", "stack"), counts = make("div", "counts");
    for (const name of names.slice(0, 3)) stack.append(make("i", name));
    names.forEach((name, i) => {
      const cell = make("div"), label = make("span");
      if (i < 3) label.append(make("i", name));
      label.append(name);
      cell.append(make("b"), label);
      counts.append(cell);
    });
    box.append(stack, counts);
  }
  const [stack, counts] = box.children;
  names.forEach((name, i) => {
    if (i < 3) stack.children[i].style.width = 100 * pool[name] / pool.total + "%";
    set(counts.children[i].firstElementChild, pool[name].toLocaleString("en"));
  });
  set($("poolnote"), `${pool.total.toLocaleString("en")} in all. Leased: in the hands of learners, not yet committed. `
    + "Redone: trained again after a learner was lost.");
}

// The curve.
const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function steps(low, high, most) {
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return [found, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))];
}
function timeSteps(low, high) {
  const raw = (high - low) / 7;
  const step = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400].find((s) => s >= raw) || 172800;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(t);
  return found;
}
function showCurve() {
  const figure = $("curve"), W = 560, H = 230, left = 46, right = 22, top = 8, bottom = 26;
  const points = data.heldout.concat(data.train);
  figure.replaceChildren();
  if (!points.length) { figure.append(svg("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing was measured yet")); return; }
  const end = Math.max(data.state.time, ...points.map((p) => p[0]), 1);
  // The first values are far off: the axis shows where most of the run is.
  const sorted = points.map((p) => p[1]).sort((a, b) => a - b);
  let low = sorted[Math.floor(0.05 * (sorted.length - 1))], high = sorted[sorted.length - 1];
  if (high - low < 1e-6) { low -= 0.5; high += 0.5; }
  const room = 0.06 * (high - low);
  low -= room; high += room;
  const x = (t) => left + (W - left - right) * t / end;
  const y = (v) => top + (H - top - bottom) * (high - Math.max(low, v)) / (high - low);
  const [ticks, digits] = steps(low, high, 7);
  for (const v of ticks) {
    figure.append(svg("line", { x1: left, x2: W - right, y1: y(v), y2: y(v), class: "grid" }));
    figure.append(svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, signed(v, digits)));
  }
  for (const t of timeSteps(0, end)) figure.append(svg("text", { x: x(t), y: H - 8, "text-anchor": "middle" }, clock(t)));
  for (const name of ["train", "heldout"]) {
    const path = data[name].map((p, i) => (i ? "L" : "M") + x(p[0]).toFixed(1) + " " + y(p[1]).toFixed(1)).join("");
    if (path) figure.append(svg("path", { d: path, class: "curve " + name }));
  }
  for (const p of data.heldout) figure.append(svg("circle", { cx: x(p[0]), cy: y(p[1]), r: 2.6, class: "heldout" }));
}

// The timeline.
function showTimeline() {
  const canvas = $("timeline"), style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const numbers = [...new Set(data.lives.map((life) => life[0]))].sort((a, b) => a - b);
  const width = canvas.clientWidth, row = Math.max(2, Math.min(16, Math.floor(420 / Math.max(1, numbers.length))));
  const left = 74, top = 9, height = top + row * numbers.length + 22, ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11.5px system-ui, sans-serif";
  const end = Math.max(data.state.time, 1);
  const first = Math.min(...data.lives.map((life) => life[1]), end - 1);
  const begin = whole ? Math.max(0, first - 1) : Math.max(0, first - 1, end - RECENT_S);
  const x = (t) => left + (width - left - 22) * (Math.max(t, begin) - begin) / (end - begin);
  const place = new Map(numbers.map((n, i) => [n, top + i * row]));
  const slow = new Set(data.state.slow.map((s) => s.learner));
  const gap = row > 6 ? 3 : row > 3 ? 1 : 0;
  pen.fillStyle = colour("--c5");
  pen.globalAlpha = 0.55;
  for (const [n, from, to] of data.lives)
    if ((to ?? end) > begin) pen.fillRect(x(from), place.get(n), Math.max(1, x(to ?? end) - x(from)), row - gap);
  pen.globalAlpha = 1;
  pen.fillStyle = colour("--c2");
  const least = row > 6 ? 1 : 2;  // a pixel in a thin row is not seen
  for (const [n, from, to] of data.rounds)
    if (to > begin && place.has(n)) pen.fillRect(x(from), place.get(n), Math.max(least, x(to) - x(from)), row - gap);
  for (const [n, from, to, lost] of data.lives) {
    pen.fillStyle = colour("--good");
    if (from >= begin) pen.fillRect(x(from), place.get(n), 3, row - gap);
  }
  pen.fillStyle = colour("--bad");
  const tall = Math.max(row - gap, 7), over = (tall - row + gap) / 2;  // a death among hundreds, too
  for (const [n, , to, lost] of data.lives)
    if (lost && to >= begin) pen.fillRect(x(to) - 2, place.get(n) - over, 4, tall);
  const every = Math.ceil(13 / row);
  numbers.forEach((n, i) => {
    if (i % every && !slow.has(n)) return;
    pen.fillStyle = colour(slow.has(n) ? "--bad" : "--soft");
    pen.textAlign = "right";
    pen.fillText("learner " + n, left - 7, place.get(n) + Math.min(row, 12) - 1);
  });
  pen.fillStyle = colour("--soft");
  pen.textAlign = "center";
  for (const t of timeSteps(begin, end)) pen.fillText(clock(t), x(t), height - 6);
}

// Learners.
const SHARES = ["computing", "data", "others", "exchanging"];
function makeCard() {
  const card = make("div", "card"), head = make("h3"), split = make("div", "split");
  head.append(make("span"), make("em"));
  for (const kind of SHARES) split.append(make("i", kind));
  const asks = make("div", "ask");
  for (const [action, text] of [["stack", "Stack"], ["remove", "Remove"]]) {
    const button = make("button", "", text);
    button.dataset.action = action;
    asks.append(button);
  }
  card.append(head, make("div", "where"), split, make("dl"), asks);
  return card;
}
function facts(row) {
  if (row.state !== "here")
    return [["examples a second", short(row.rate)], ["examples", short(row.examples)], ["share of the work", percent(row.share, 1)],
      ["speed, others = 1", row.ratio == null ? "–" : row.ratio.toFixed(2)],
      ["computing", percent(row.computing)], ["waiting", percent(row.data + row.others)],
      [row.state === "lost" ? "lost at" : "left at", clock(row.gone)]].concat(row.reason ? [["why", row.reason]] : []);
  const list = [
    ["examples a second", short(row.rate)], ["share of the work", percent(row.share, 1)],
    ["speed, others = 1", row.ratio == null ? "–" : row.ratio.toFixed(2)],
    ["computing", percent(row.computing)], ["waiting", percent(row.data + row.others)],
    ["exchanging", percent(row.exchanging + row.beside)],
    ["staleness", row.staleness == null ? "–" : short(row.staleness)],
    ["last seen", row.seen_s < 3.5 ? "now" : span(row.seen_s) + " ago"]];
  return list;
}
function badge(row) {
  if (row.state === "lost") return "lost";
  if (row.state === "left") return row.removed ? "removed"
    : data.state.stage !== "finished" ? "finished" : row.n === data.state.slowest ? "slowest" : "";
  if (row.silent) return "silent " + span(row.seen_s);
  if (row.removed) return "leaving";
  if (row.slow) return "slow";
  const names = { data: "waits for data", others: "waits for others", computing: "same step" };
  if (row.doing_s > 2) return `${names[row.doing] || row.doing} ${span(row.doing_s)}`;
  return row.lives > 1 ? "rejoined" : "";
}
function fill(card, row) {
  const kind = "card " + row.state + (row.slow || row.silent ? " slow" : "");
  if (card.className !== kind) card.className = kind;
  card.dataset.learner = row.n;
  const [head, where, split, list, asks] = card.children;
  for (const button of asks.children)
    button.hidden = row.state !== "here" || !offers(button.dataset.action) || (row.removed && button.dataset.action === "remove");
  set(head.children[0], (cards.size > MANY && card !== $("detail").firstElementChild ? "" : "learner ") + row.n);
  set(head.children[1], badge(row));
  set(where, [row.host, row.device].filter(Boolean).join(" · ") || "host not told");
  SHARES.forEach((name, i) => { split.children[i].style.width = 100 * (row[name] || 0) + "%"; });
  const pairs = facts(row);
  while (list.children.length > 2 * pairs.length) list.lastElementChild.remove();
  while (list.children.length < 2 * pairs.length) list.append(make("dt"), make("dd", list.children.length ? "" : "first"));
  pairs.forEach(([name, value], i) => { set(list.children[2 * i], name); set(list.children[2 * i + 1], value); });
  card.title = cards.size > MANY ? pairs.map((pair) => pair.join(": ")).join("\n") : "";
}
function showLearners(state) {
  const box = $("learners"), rows = state.learners;
  box.className = (rows.length > MANY ? "many " : "") + state.stage;
  const known = new Set(rows.map((row) => row.n));
  for (const [n, card] of cards) if (!known.has(n)) { card.remove(); cards.delete(n); }
  for (const row of rows) if (!cards.has(row.n)) cards.set(row.n, makeCard());
  rows.forEach((row, i) => {
    const card = cards.get(row.n);
    if (box.children[i] !== card) box.insertBefore(card, box.children[i] || null);
    fill(card, row);
  });
  const large = rows.find((row) => row.n === chosen), detail = $("detail");
  detail.hidden = !large || rows.length <= MANY;
  if (!detail.hidden) {
    if (!detail.children.length) detail.append(makeCard());
    fill(detail.firstElementChild, large);
  }
}

// The log.
function addLines(lines) {
  const list = $("log"), atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 30;
  for (const [time, text, bad] of lines) {
    const line = make("li", bad ? "bad" : "");
    line.append(make("time", "", clock(time)), text);
    list.append(line);
  }
  while (list.children.length > 200) list.firstElementChild.remove();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function take(message) {
  if (message.reset) { data.rounds = []; $("log").replaceChildren(); }
  data.state = message.state;
  for (const name of ["heldout", "train", "lives"]) if (message[name]) data[name] = message[name];
  data.rounds = data.rounds.concat(message.rounds).slice(-MOST_ROUNDS);
  addLines(message.log);
  draw();
}
function draw() {
  if (!data.state) return;
  showHead(data.state);
  showPool(data.state.pool);
  showCurve();
  showTimeline();
  showLearners(data.state);
}
function choose(isWhole) {
  whole = isWhole;
  $("recent").setAttribute("aria-pressed", String(!whole));
  $("whole").setAttribute("aria-pressed", String(whole));
  draw();
}
$("recent").addEventListener("click", () => choose(false));
$("whole").addEventListener("click", () => choose(true));
$("learners").addEventListener("click", (event) => {
  const card = event.target.closest(".card");
  if (card) { chosen = Number(card.dataset.learner); draw(); }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const card = button.closest(".card");
  ask(button.dataset.action, card ? Number(card.dataset.learner) : null);
});
$("closestack").addEventListener("click", () => { $("stack").hidden = true; });
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

const source = new EventSource("events");
source.onmessage = (event) => take(JSON.parse(event.data));
source.onerror = () => {
  // The run's own page ends with the run; a browser goes on asking for it.
  const ended = data.state && ["finished", "failed"].includes(data.state.stage);
  if (ended) { source.close(); return; }
  $("stage").className = "pill away";
  set($("stage"), "the page's server cannot be reached");
};
