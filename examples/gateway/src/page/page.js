"use strict";
const SECONDS = 120;
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const cards = new Map();

/** Names of nodes by their URLs, as far as the browser may keep them. */
const names = (() => {
  try { return localStorage; } catch { return { getItem: () => null, setItem: () => {} }; }
})();

/** The card of the node at a base URL; the first time it is made. */
function card(base) {
  if (!cards.has(base)) {
    const section = document.querySelector("template").content.cloneNode(true).firstElementChild;
    // (The name that it had when it last answered, be it to an earlier visit.)
    section.querySelector(".name").textContent = names.getItem(base || location.origin) ?? (base || location.host);
    document.querySelector("main").append(section);
    cards.set(base, { section, samples: [] });
  }
  return cards.get(base);
}

/** A line from right to left, now being at the right. */
function line(samples, value, most) {
  const now = samples.at(-1).at;
  const points = samples.map((sample) => {
    const x = SECONDS - (now - sample.at), y = 70 - 66 * value(sample) / (most || 1);
    return `${x.toFixed(2)} ${y.toFixed(2)}`;
  });
  return `M${points.join("L")}`;
}

function draw(base, stats) {
  const { section, samples } = card(base);
  const figures = { ...stats, at: performance.now() / 1000 };
  // A node that was started anew counts from zero again.
  if (samples.length && samples.at(-1).uptime_ms > figures.uptime_ms) samples.length = 0;
  const last = samples.at(-1) ?? figures;
  const rate = (name) => Math.max(0, figures[name] - last[name]) / (figures.at - last.at || 1);
  figures.rates = { woken: rate("woken"), posts: rate("posts"), cpu: rate("cpu_ms") / 10 };
  samples.push(figures);
  while (figures.at - samples[0].at > SECONDS) samples.shift();
  const most = Math.max(...samples.map((sample) => sample.parked));
  const fastest = Math.max(...samples.map((sample) => sample.rates.woken));

  section.className = figures.lag_ms ? "behind" : "live";
  const name = `${figures.name} (${figures.engine})`;
  section.querySelector(".name").textContent = name;
  names.setItem(base || location.origin, name);
  section.querySelector(".live").textContent = figures.lag_ms
    ? `not in step with the store for ${(figures.lag_ms / 1000).toFixed(1)} s` : "in step";
  const show = (figure, text) => { section.querySelector(`[data-figure="${figure}"]`).textContent = text; };
  show("parked", whole.format(figures.parked));
  show("woken", whole.format(figures.rates.woken));
  show("posts", whole.format(figures.rates.posts));
  show("cpu", `${whole.format(figures.rates.cpu)} %`);
  show("most", `at most ${whole.format(most)}`);
  show("fastest", `at most ${whole.format(fastest)}`);
  const path = (selector, d) => section.querySelector(`path.${selector}`).setAttribute("d", d);
  const parked = line(samples, (sample) => sample.parked, most);
  path("parked", parked);
  path("area", `${parked}L${SECONDS} 72L${(SECONDS - (figures.at - samples[0].at)).toFixed(2)} 72Z`);
  path("woken", line(samples, (sample) => sample.rates.woken, fastest));

  const rest = { topics: figures.watched_topics, sessions: figures.sessions, gaps: figures.gaps, healed: figures.healed,
    resets: figures.resets, "bodies read": figures.fetches, expired: figures.expired, refused: figures.refused };
  section.querySelector("dl").replaceChildren(...Object.entries(rest).map(([says, count]) => {
    const pair = document.createElement("div"), name = document.createElement("dt"), value = document.createElement("dd");
    name.textContent = says;
    name.title = document.querySelector(`[data-word="${says}"] + dd`).textContent;
    value.textContent = whole.format(count);
    pair.append(name, value);
    return pair;
  }));
}

async function read(base) {
  const answer = await fetch(`${base}/stats`, { cache: "no-store", signal: AbortSignal.timeout(3000) });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

async function update(base) {
  try {
    const stats = await read(base);
    draw(base, stats);
    return stats.peers;
  } catch (error) {
    const { section } = card(base);
    section.className = "gone";
    section.querySelector(".live").textContent = "no answer";
    return [];
  }
}

/** The nodes that this one knows of are remembered, so that the others are shown when this one is gone. */
const peers = new Set();
async function turn() {
  for (const peer of await update("")) peers.add(peer);
  peers.forEach(card); // in their order, whichever answers first
  await Promise.all([...peers].map(update));
  const gone = document.querySelectorAll("section.gone").length;
  const all = cards.size === 1 ? "1 node" : `${cards.size} nodes`;
  document.getElementById("state").textContent = gone ? `no answer from ${gone} of ${all}` : all;
  setTimeout(turn, 1000);
}
turn();
