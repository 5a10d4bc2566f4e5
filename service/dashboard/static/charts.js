// Charts, drawn by Plotly in the page's own colours, light or dark.
//
// Plotly is large: a browser needs some tenths of a second to run it the first two times; after that the browser
// keeps it compiled. So a page loads it last, when idle; the page to sign in fetches it in advance.

const address = document.querySelector("meta[name=plotly]").content;
let coming = null;

export function prefetch() {
  document.head.append(Object.assign(document.createElement("link"), { rel: "prefetch", href: address }));
}

function plotly() {
  coming ??= new Promise((come) => (globalThis.requestIdleCallback ?? setTimeout)(come, { timeout: 1000 })).then(
    () =>
      new Promise((come, fail) => {
        const script = document.createElement("script");
        script.src = address;
        script.onload = () => come(globalThis.Plotly);
        script.onerror = () => fail(new Error("The charts' library did not arrive; load the page again."));
        document.head.append(script);
      }),
  );
  return coming;
}

/** Okabe and Ito's colours for lines, which the colour-blind can tell apart. */
export const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9"];

/** The page's colours, by the names that style.css gives them. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const drawn = new Map();
let turn = Promise.resolve();
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => drawn.forEach((chart, element) => draw(element, chart)));

/**
 * Draws a chart, or draws it anew, one at a time.
 * chart: `traces()` and `layout()`, asked for each time since colours change; `said`, the chart in words.
 */
export function draw(element, chart) {
  drawn.set(element, chart);
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", chart.said);
  turn = turn
    .catch(() => {})
    .then(() => plotly())
    .then(async (library) => {
      await new Promise((drawn) => setTimeout(drawn)); // whoever clicks or types meanwhile comes first
      await put(library, element, chart);
    });
  return turn;
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
/** Escapes a text for Plotly, which interprets some HTML tags. */
const plain = (text) => text.replace(/[&<>]/g, (character) => ENTITIES[character]);

async function put(library, element, chart) {
  const axis = {
    gridcolor: colour("line"),
    zerolinecolor: colour("line"),
    linecolor: colour("line"),
    automargin: true,
    fixedrange: true,
  };
  const { xaxis, yaxis, ...more } = chart.layout();
  await library.react(
    element,
    chart.traces().map((trace) => (trace.name ? { ...trace, name: plain(trace.name) } : trace)),
    {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("muted") },
      margin: { l: 8, r: 12, t: 8, b: 8 },
      showlegend: false,
      dragmode: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
      xaxis: { ...axis, showgrid: false, nticks: 6, separatethousands: true, exponentformat: "none", ...xaxis },
      yaxis: { ...axis, rangemode: "tozero", nticks: 5, separatethousands: true, exponentformat: "power", ...yaxis },
      ...more,
    },
    { displayModeBar: false, responsive: true, doubleClick: false },
  );
}

/** A chart as a PNG picture of twice as many pixels as it has on the page. */
export async function picture(element) {
  const [width, height] = [element.clientWidth, element.clientHeight];
  const library = await plotly();
  const drawing = new Image(); // from a data: address; Plotly's own way uses another kind, which the page's policy forbids
  drawing.src = await library.toImage(element, { format: "svg", width, height });
  await drawing.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour("card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(drawing, 0, 0, canvas.width, canvas.height);
  return new Promise((come) => canvas.toBlob(come));
}

export const line = (x, y, more = {}) => ({
  type: "scatter",
  mode: "lines",
  x,
  y,
  marker: { size: 4 },
  line: { color: colour("accent"), width: 2, shape: "hv", ...more.line },
  ...Object.fromEntries(Object.entries(more).filter(([name]) => name !== "line")),
});

/** A horizontal line at a limit, with its label. */
export const level = (y, text) => ({
  shapes: [
    {
      type: "line",
      xref: "paper",
      x0: 0,
      x1: 1,
      y0: y,
      y1: y,
      line: { color: colour("muted"), width: 1.5, dash: "dash" },
    },
  ],
  annotations: [
    {
      xref: "paper",
      x: 1,
      xanchor: "right",
      y,
      yanchor: "bottom",
      text,
      showarrow: false,
      font: { color: colour("muted") },
    },
  ],
});
