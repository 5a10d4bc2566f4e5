// A person labels records. Chosen labels wait on this page, can be taken back, and are not sent before they are
// submitted.
//
// Every record that the service hands out is shown, and shown again if its lease ended and it is handed out again: so
// nothing is lost. No record replaces another by itself, so nobody labels a record that they did not see.
// Of several answers the service takes the first.

import { Problem, follow, get, read, regularly, send } from "./api.js";
import { $, count, counted, fact, h, meter, notice, pageOf, pill, replace, toPublication } from "./dom.js";
import { absent, frame, ofAnother, publicationAt } from "./frame.js";
import { mappedColumns, sent } from "./names.js";
import { feature } from "./record.js";

const name = location.pathname.split("/").at(-2);
const at = `/v1/publications/${name}`;
const readPublication = publicationAt(at);
const UNNAMED = ["negative", "positive"];
const MOST_CHOSEN = 10; // then they are submitted first: others wait for what is kept here
const WAIT_SECONDS = 30;
const FEATURES_AT_ONCE = 500;

let [publication, stream] = [null, null];
let current = null; // the record that is shown; `label`: what was chosen for it before
let aside = []; // were shown, until an earlier choice was taken back
let held = []; // chosen, in this order
let sending = []; // of these, what is on its way
let asking = null; // how to give up the request that waits for a record
let [mine, most, zeros] = [0, FEATURES_AT_ONCE, false];

const same = (one) => (other) => other.record === one.record;
const titled = ({ record }) => `Record ${count(record)}`;
const classes = () => stream?.class_names ?? UNNAMED;
const classed = (label) => `${label}, ${classes()[label]}`;

let said = [];
/** Announces what the user did; `add` appends what happens afterwards. */
const say = (text) => tell([text]);
const add = (text) => tell([...said, text].slice(-3));
function tell(texts) {
  said = texts;
  $("said").textContent = said.join(" ");
}

const troubles = {};
/** Reports a failed request. It is retried, so chosen labels are kept. */
const trouble = (where) => (error) => {
  if (error?.status === 401) {
    if (held.length + sending.length === 0) return get("/v1/session"); // leads to where one signs in
    error = new Problem(401, {
      detail:
        "You are not signed in any more. Sign in again in another tab of this browser, then submit: what you chose stays here.",
    });
  }
  troubles[where] = error;
  if (where === "looking" && !error && [401, 403].includes(troubles.submitting?.status)) troubles.submitting = null; // signed in
  absent(Object.values(troubles).find(Boolean) ?? null);
};

async function look() {
  const before = publication?.latest;
  publication = await readPublication();
  if (before !== undefined && publication.latest > before)
    add(`A new model is out: version ${count(publication.latest)}.`);
  stream ??= await read(`/v1/streams/${publication.stream}`);
  replace(
    $("crumb"),
    " / ",
    h("a", { href: `/dashboard/streams/${publication.stream}` }, publication.stream),
    " / ",
    toPublication(name, publication.stream),
  );
  replace($("state"), pill(publication.state));
  const begins = $("work").hidden && publication.labels !== null;
  $("work").hidden = publication.labels === null;
  if (begins) $("record").focus({ preventScroll: true });
  replace($("trouble"), ofAnother(publication.stream), cannot());
  render();
  again();
}

function cannot() {
  if (publication.plan.labels?.from !== "people")
    return notice(
      "plain",
      "It asks nobody for labels",
      "Only a publication that learns from labels given by people, on an unlabelled stream, does.",
    );
  if (publication.labels === null)
    return notice(
      "plain",
      "This key may not label",
      "People who label see records. Sign in with a key that has the scopes read and label.",
    );
  if (publication.state !== "running")
    return notice("plain", "Nothing is asked for any more", publication.reason ?? "The publication was stopped.");
  return null;
}

/** Waits for the next record, unless enough records are waiting here. */
async function ask() {
  if (
    publication?.labels == null ||
    publication.state !== "running" ||
    current ||
    held.length + sending.length >= MOST_CHOSEN
  )
    return;
  asking = new AbortController();
  const { signal } = asking;
  try {
    await readPublication(); // before a record is leased
    const answer = await send(`${at}/label-requests`, { headers: { Prefer: `wait=${WAIT_SECONDS}` }, signal });
    if (answer.status === 200) take(await answer.json(), Date.parse(answer.headers.get("Date")) || Date.now());
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** Takes a record that was handed out in this second by the service's clock; its remaining time is rounded down. */
function take({ record, x, lease_expires_at, expires_at }, now) {
  const here = (moment) => Date.now() + Date.parse(moment) - now - 1000;
  const one = { record, x, until: here(lease_expires_at), end: here(expires_at) };
  if (sending.some(same(one))) return;
  const chosen = held.find(same(one));
  held = held.filter((request) => request !== chosen);
  aside = aside.filter((request) => request.record !== record);
  if (chosen) {
    one.label = chosen.label;
    say(`${titled(one)} was not submitted in time. Here it is again; you had chosen ${classed(one.label)}.`);
  }
  if (current && same(one)(current)) current = { ...current, ...one };
  else if (current) aside.push(one);
  else show(one);
  lookAgain(); // perhaps it is of another batch
}

function show(one) {
  current = one;
  most = FEATURES_AT_ONCE;
  if (one.label === undefined) add(`${titled(one)} is next.`);
  render();
}

function next() {
  current = null;
  if (aside.length) show(aside.pop());
  else again();
  render();
}

function choose(label) {
  if (!current) return say("There is no record to choose for.");
  if (left(current.end) === 0) say(`It was too late for ${titled(current).toLowerCase()}: nothing is chosen for it.`);
  else {
    held.push({ ...current, label });
    say(`${titled(current)}: ${classed(label)}.`);
  }
  next();
}

function skip() {
  if (!current) return say("There is no record to skip.");
  say(`${titled(current)} is skipped. It comes again, to you or somebody else, when its time is over.`);
  next();
}

function undo() {
  trouble("submitting")(null);
  if (!held.length)
    return say(sending.length ? "It is submitted already." : "Nothing is chosen that could be taken back.");
  if (current) aside.push(current);
  const one = held.pop();
  say(`${titled(one)} is taken back; you had chosen ${classed(one.label)}.`);
  show(one);
}

/** Sends chosen labels one after the other. Reports refused ones; those that could not be sent stay chosen. */
async function submit() {
  if (sending.length) return;
  if (!held.length) return say("Nothing is chosen yet.");
  [sending, held] = [held, []];
  const [refused, before] = [[], mine];
  trouble("submitting")(null);
  render();
  while (sending.length) {
    const [{ record, label }] = sending;
    try {
      await readPublication();
      await send(`${at}/labels`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ record, label }),
      });
      mine += 1;
    } catch (error) {
      if (![404, 409, 422].includes(error.status)) {
        held.unshift(...sending.splice(0));
        trouble("submitting")(error);
        break;
      }
      refused.push([record, reason(error)]);
    }
    sending.shift();
    render();
  }
  say(`${counted(mine - before, "label")} submitted.`);
  if (refused.length) add(`${count(refused.length)} not taken.`);
  if (held.length)
    add(`${count(held.length)} could not be sent and ${held.length === 1 ? "is" : "are"} still chosen: submit again.`);
  replace(
    $("refused"),
    refused.map(([record, why]) => notice("warn", `${titled({ record })} was not taken`, why)),
  );
  render();
  again();
  lookAgain();
}

function reason({ status, told, message }) {
  if (told.type?.endsWith(":label-not-awaited"))
    return "It was answered before, was erased, or its time is over. Your answer changes nothing.";
  return status === 422 ? `The service can't read this answer (${message}). The record comes again.` : message;
}

const left = (moment) => Math.max(0, Math.ceil((moment - Date.now()) / 1000));

/** Shows how long a record's lease lasts, and what happens afterwards. */
function time({ until, end }) {
  if (left(end) === 0) return "too late: its time is over";
  if (left(until) === 0) return "others may be asked too: the first answer counts";
  return `yours for ${left(until)} s`;
}

function tick() {
  for (const one of held) {
    if (!one.late && left(one.until) === 0) {
      one.late = true;
      add(`${titled(one)} is not submitted, and others may be asked for it now. The first answer counts.`);
    }
  }
  if (current && !current.ended && left(current.end) === 0) {
    current.ended = true;
    add(`The time for ${titled(current).toLowerCase()} is over, and the model goes on without its label. Skip it.`);
  }
  render();
}

function render() {
  $("record-title").textContent = current ? titled(current) : "Nothing to label now";
  $("lease").textContent = current ? time(current) : "";
  $("waits").hidden = current !== null || publication?.state !== "running";
  $("waits").classList.toggle("on", !current);
  $("waits").textContent = waits();
  $("shown").hidden = current === null;
  features();
  replace(
    $("choices"),
    [...classes().map((what, label) => [label, what]), ["S", "skip"]].map(([key, what]) =>
      h(
        "button",
        {
          type: "button",
          "data-does": key,
          "aria-disabled": String(current === null),
          class: current?.label === key ? "before" : null,
        },
        h("kbd", {}, key),
        ` ${what}`,
      ),
    ),
  );
  replace(
    $("held"),
    [...sending.map((one) => [one, "submitting"]), ...held.map((one) => [one, time(one)])].map(([one, how]) =>
      h("li", {}, h("span", {}, titled(one)), h("strong", {}, classed(one.label)), h("span", { class: "muted" }, how)),
    ),
  );
  $("held-none").hidden = held.length + sending.length > 0;
  $("held-said").textContent = `${count(held.length + sending.length)} of at most ${MOST_CHOSEN}`;
  $("submit").setAttribute("aria-disabled", held.length === 0);
  $("undo").setAttribute("aria-disabled", held.length === 0);
  if (publication?.labels) tiles(publication);
}

function waits() {
  if (held.length >= MOST_CHOSEN) return `${count(held.length)} are chosen. Submit them to go on.`;
  const others = (publication?.labels?.waiting ?? 0) - held.length - sending.length;
  const where =
    others > 0
      ? `${count(others)} that ${others === 1 ? "is" : "are"} asked for ${others === 1 ? "is" : "are"} with others, skipped, or not to be shown: erased, or empty.`
      : `Nothing ${held.length + sending.length ? "else " : ""}is asked for.`;
  return `${where} The next record appears here by itself.${held.length ? " What you chose is not submitted yet." : ""}`;
}

function tiles({ labels, latest, stream }) {
  const all = labels.waiting + labels.answered;
  const done = all ? `${count(labels.answered)} of ${count(all)}` : "none is asked for";
  replace(
    $("tiles"),
    fact("Answered of this batch", done, h("small", {}, meter(labels.answered, 0, all, `${done} answered`))),
    fact("By you", counted(mine, "label"), h("small", {}, "since you opened this page")),
    fact(
      "Latest model",
      latest === null ? "none yet" : `version ${count(latest)}`,
      h(
        "small",
        {},
        latest === null
          ? "it learns when a batch is answered"
          : h("a", { href: pageOf(name, stream) }, "all releases"),
      ),
    ),
  );
}

let drawn = "";

/** The record's numbers, each with a bar in proportion to the largest. */
function features() {
  const which = current && `${current.record} ${most} ${zeros}`;
  if (!current || drawn === which) return;
  drawn = which;
  const { x } = current;
  const { feature_map: map } = stream;
  const largest = x.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const all = x.map((value, index) => [index, value]);
  const some = zeros || x.length <= 20 ? all : all.filter(([, value]) => value !== 0);
  const wanted = some.slice(0, most);
  $("features-said").textContent = [
    counted(x.length, "feature"),
    !sent(stream) ? `after the map ${map.kind.replaceAll("_", " ")}` : map && "as they were sent, bars as they are kept",
    some.length < x.length ? `${count(x.length - some.length)} that are 0 are left out` : null,
  ]
    .filter(Boolean)
    .join(", ");
  $("features").replaceChildren(
    h(
      "dl",
      { class: mappedColumns(stream) ? "named" : null },
      wanted.map(([index, value]) => feature(stream, index, value, largest)),
    ),
  );
  $("features").scrollTop = 0;
  const has = x.length > 20 && x.includes(0);
  replace(
    $("showing"),
    wanted.length < some.length &&
      h(
        "button",
        { type: "button", "data-does": "more" },
        `Show ${count(Math.min(FEATURES_AT_ONCE, some.length - wanted.length))} more`,
      ),
    has && h("button", { type: "button", "data-does": "zeros", "aria-pressed": String(zeros) }, "Show zeros"),
  );
}

const ACTIONS = { 0: () => choose(0), 1: () => choose(1), s: skip, u: undo, backspace: undo, enter: submit };

/** Focuses the record after each action, so that Enter never repeats a button. */
function act(action) {
  action();
  $("record").focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || $("work").hidden) return;
  if (event.target.closest(".top") || (event.key === "Enter" && event.target.closest("button, a"))) return;
  const action = ACTIONS[event.key.toLowerCase()] ?? ACTIONS[/^Digit(\d)$/.exec(event.code)?.[1]];
  if (!action) return;
  event.preventDefault();
  act(action);
});
$("choices").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) act(ACTIONS[button.dataset.does.toLowerCase()]);
});
$("submit").addEventListener("click", () => act(submit));
$("undo").addEventListener("click", () => act(undo));
$("showing").addEventListener("click", (event) => {
  const what = event.target.closest("button")?.dataset.does;
  if (what === "more") most += FEATURES_AT_ONCE;
  if (what === "zeros") zeros = !zeros;
  render();
  $("features").focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", () => document.hidden && asking?.abort()); // what nobody sees is for others
addEventListener("beforeunload", (event) => held.length + sending.length > 0 && event.preventDefault());

$("name").textContent = `Label for ${name}`;
document.title = `Label for ${name} · Perennial`;
frame(read);
const again = regularly(1, ask, trouble("asking"));
const lookAgain = regularly(10, look, trouble("looking"));
const alive = (live) => {
  $("live").classList.toggle("on", live);
  $("live").textContent = live ? "live" : "connecting again";
};
follow(name, lookAgain, alive, read);
setInterval(tick, 1000);
