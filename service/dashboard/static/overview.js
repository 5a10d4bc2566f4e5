import { get, regularly } from "./api.js";
import { post } from "./command.js";
import {
  $,
  amount,
  budgetFacts,
  budgetMeter,
  count,
  counted,
  fact,
  h,
  loss,
  notice,
  pill,
  replace,
  stated,
  table,
  toLabel,
  toPublication,
} from "./dom.js";
import { failed, frame } from "./frame.js";

const PAGE = 100;
const FEW = 5;

$("find").value = new URLSearchParams(location.search).get("find") ?? ""; // as it was, for who comes back
let wanted = $("find").value ? Infinity : PAGE;

/** Returns a list, newest first, up to the number wanted. */
async function list(path, most) {
  const items = [];
  for (;;) {
    const before = items.length ? `&before=${items.at(-1).id}` : "";
    const page = (await get(`${path}?limit=${Math.min(1000, most - items.length)}${before}`)).items;
    items.push(...page);
    if (items.length >= most || page.length === 0) return items;
  }
}

let streams = [];
let publications = [];

async function look() {
  [streams, publications] = await Promise.all([
    list("/v1/streams", wanted),
    list("/v1/publications", 10 * wanted),
  ]);
  $("streams").removeAttribute("aria-busy");
  $("finding").hidden = streams.length <= FEW;
  $("more").hidden = streams.length < wanted;
  draw();
}

/** Draws the streams found: few with all their publications, many as one line each. */
function draw() {
  const of = Object.groupBy(publications, (publication) => publication.stream);
  const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = streams.filter((stream) => holds(words, stream, of[stream.name] ?? []));
  replace(
    $("streams"),
    streams.length === 0
      ? nothing()
      : found.length === 0
        ? h("p", { class: "muted" }, "No stream has all these words.")
        : found.length <= FEW
          ? found.map((stream) => card(stream, of[stream.name] ?? []))
          : lines(found, of),
  );
  const unwell = [...streams.filter(unwellStream), ...publications.filter((publication) => publication.state === "halted")];
  $("summary").textContent = [
    streams.length && `${$("more").hidden ? "" : "the newest "}${counted(streams.length, "stream")}`,
    streams.length && counted(publications.length, "publication"),
    unwell.length && `${unwell.length} need attention`,
    words.length && `${count(found.length)} found`,
  ]
    .filter(Boolean)
    .join(", ");
}

const stateOf = (stream) => (stream.distrusted ? "distrusted" : stream.halted ? "halted" : "receiving");
const unwellStream = (stream) => stateOf(stream) !== "receiving";

/** Returns whether all words occur in the names, kinds and states of a stream and its publications. */
function holds(words, stream, publications) {
  const text = [
    stream.name,
    stream.task.kind,
    stateOf(stream),
    stated(stateOf(stream)),
    ...publications.flatMap((publication) => [
      publication.name,
      publication.mechanism.kind.replaceAll("_", " "),
      publication.state,
      toLabel(publication).textContent,
    ]),
  ]
    .join(" ")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

function lines(streams, of) {
  return h(
    "div",
    { class: "card" },
    table(
      "Streams, newest first",
      [
        { title: "Stream" },
        { title: "Records", number: true },
        { title: "ε used, at most", number: true },
        { title: "Publications", wide: true },
      ],
      streams.map((stream) => line(stream, of[stream.name] ?? [])),
    ),
  );
}

function line(stream, publications) {
  return [
    [
      h("a", { href: `/dashboard/streams/${stream.name}` }, stream.name),
      unwellStream(stream) && [" ", pill(stateOf(stream))],
    ],
    count(stream.records),
    `${amount(stream.spent.epsilon)} of ${amount(stream.budget.epsilon)}`,
    publications.length ? several(stream, publications) : "–",
  ];
}

/** A stream's publications in one line: all that need attention, then the newest others, and the number of the rest. */
function several(stream, publications) {
  const urgent = publications.filter(needsSomebody);
  const calm = publications.filter((publication) => !needsSomebody(publication)).slice(0, Math.max(0, FEW - urgent.length));
  const more = publications.length - urgent.length - calm.length;
  return h(
    "span",
    {},
    [...urgent, ...calm].map(inLine),
    more > 0 && [
      ", ",
      h(
        "a",
        { href: `/dashboard/streams/${stream.name}`, title: counted(more, "other publication") },
        `+${count(more)}`,
      ),
    ],
  );
}

const needsSomebody = ({ state, labels }) => state === "halted" || labels?.waiting > 0;

const inLine = (publication, index) => [
  index > 0 && ", ",
  toPublication(publication.name, publication.stream),
  publication.state === "halted" && [" ", pill("halted")],
  toLabel(publication),
];

const TASKS = {
  classification: (task) => `classification, ${task.classes} classes`,
  regression: (task) => `regression, y within ±${amount(task.bound)}`,
  unlabelled: () => "no labels",
  categorical: (task) => `${count(task.cardinality)} categories`,
};

function card(stream, publications) {
  const { task, features } = stream;
  const trouble = stream.distrusted ?? stream.halted;
  return h(
    "article",
    { class: "card", "aria-labelledby": `stream-${stream.name}` },
    h(
      "header",
      {},
      h("h2", { id: `stream-${stream.name}` }, h("a", { href: `/dashboard/streams/${stream.name}` }, stream.name)),
      pill(stateOf(stream)),
      h(
        "p",
        { class: "muted" },
        [features ? counted(features, "feature") : null, TASKS[task.kind](task)].filter(Boolean).join(" · "),
      ),
    ),
    trouble &&
      notice(
        "bad",
        stream.distrusted ? "Its ledger does not verify; nothing is published" : "Nothing more is numbered",
        trouble,
      ),
    stream.declassified > 0 &&
      notice(
        "warn",
        `${counted(stream.declassified, "record")} no longer protected`,
        "A publication here lets records expire: what they lose is unbounded, and not in what is spent.",
      ),
    h("dl", { class: "facts" }, fact("Records", count(stream.records)), budgetFacts(stream)),
    budgetMeter(stream),
    publications.length
      ? table(
          `Publications of ${stream.name}`,
          COLUMNS,
          publications.map((publication) => row(publication, stream.records)),
        )
      : h(
          "p",
          { class: "muted" },
          "No publications yet. ",
          h("a", { href: `/dashboard/streams/${stream.name}#publish` }, "How to make one"),
        ),
  );
}

const COLUMNS = [
  { title: "Publication" },
  { title: "Mechanism", extra: true },
  { title: "State" },
  { title: "Latest", number: true, extra: true },
  { title: "Next model", number: true },
  { title: "Promise", extra: true },
];

function row(publication, records) {
  return [
    toPublication(publication.name, publication.stream),
    publication.mechanism.kind.replaceAll("_", " "),
    [pill(publication.state), toLabel(publication)],
    publication.latest === null ? "–" : `version ${count(publication.latest)}`,
    publication.due === null
      ? "–"
      : publication.due > records
        ? `in ${counted(publication.due - records, "record")}`
        : `${counted(records - publication.due, "record")} behind`,
    loss(publication.privacy),
  ];
}

const nothing = () =>
  h(
    "div",
    { class: "card empty" },
    h("h2", {}, "No streams yet"),
    h("p", {}, "A stream takes records and holds their privacy budget. Make one with an administrator's key:"),
    h(
      "pre",
      {},
      h(
        "code",
        {},
        post(
          "/v1/streams",
          `{"name": "weather", "features": 5,
       "task": {"kind": "classification", "classes": 2},
       "budget": {"epsilon": 4, "delta": 2e-6, "accounting": "zcdp"}}`,
        ),
      ),
    ),
    h("p", { class: "muted" }, "If there are streams that you miss: your key may be limited to others."),
  );

$("find").addEventListener("input", () => {
  const { value } = $("find");
  history.replaceState(null, "", location.pathname + (value && `?find=${encodeURIComponent(value)}`));
  draw();
  if (wanted === Infinity || $("more").hidden) return;
  wanted = Infinity;
  again();
});
$("more").firstElementChild.addEventListener("click", () => {
  wanted += PAGE;
  again();
});
frame();
const again = regularly(10, look, failed);
