// What all pages share: texts as HTML, numbers for people, charts.
// html`<b>${x}</b>` escapes x, unless it is itself the result of html``; arrays are joined.
class Html { constructor(text) { this.text = text; } }
const escape = v => v instanceof Html ? v.text : Array.isArray(v) ? v.map(escape).join('')
  : String(v ?? '').replace(/[&<>"']/g, c => `&#${c.charCodeAt()};`);
const html = (parts, ...values) => new Html(String.raw({raw: parts}, ...values.map(escape)));

const number = v => typeof v === 'number' ? v : NaN;
const finite = points => points.filter(p => p.every(Number.isFinite));
const sum = values => values.reduce((a, b) => a + b, 0);
const minimum = values => values.reduce((a, b) => Math.min(a, b), Infinity);
const maximum = values => values.reduce((a, b) => Math.max(a, b), -Infinity);
const quantile = (values, q) => [...values].sort((a, b) => a - b)[Math.floor(values.length * q)];

function shortCount(value) {
  let unit = 0;
  for (; value >= 999.5 && unit < 5; ++unit) value /= 1000;
  return value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2) + ['', 'k', 'M', 'G', 'T', 'P'][unit];
}

function shortDuration(seconds) {
  const total = Math.round(seconds), d = Math.floor(total / 86400), h = Math.floor(total / 3600) % 24;
  const m = Math.floor(total / 60) % 60, two = n => String(n).padStart(2, '0');
  return d ? `${d}d${two(h)}h` : h ? `${h}h${two(m)}m` : m ? `${m}m${two(total % 60)}s` : `${total}s`;
}

// Mean of the exponential moving averages from the left and from the right, with bias correction: it does not lag.
function smooth(points) {
  const decay = 1 - 1 / Math.min(Math.max(points.length / 50, 1), 100);
  const average = values => {
    let total = 0, weight = 0;
    return values.map(v => (total = decay * total + v) / (weight = decay * weight + 1));
  };
  const values = points.map(p => p[1]), left = average(values), right = average(values.reverse()).reverse();
  return points.map((p, i) => [p[0], (left[i] + right[i]) / 2]);
}

// The minimum and the maximum of each of `columns` equal parts.
function downsample(points, columns) {
  if (points.length <= 2 * columns) return points;
  return Array.from({length: columns}, (_, i) => {
    const part = points.slice(points.length * i / columns, points.length * (i + 1) / columns);
    const extreme = sign => part.reduce((a, b) => sign * b[1] > sign * a[1] ? b : a);
    return [extreme(-1), extreme(1)].sort((a, b) => a[0] - b[0]);
  }).flat();
}

// About `count` ticks at 1, 2 or 5 times a power of ten; the axis ends at ticks if `rounded`.
function makeAxis(low, high, count, rounded) {
  if (low === high) [low, high] = [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(factor => raw / power <= factor * 1.0001);
  const first = rounded ? Math.floor(low / step) : Math.ceil(low / step);
  const last = rounded ? Math.ceil(high / step) : Math.floor(high / step);
  const ticks = Array.from({length: last - first + 1}, (_, i) => (first + i) * step);
  return rounded ? {low: first * step, high: last * step, ticks} : {low, high, ticks};
}

function tickLabel(value) {
  const size = Math.abs(value);
  const [unit, suffix] = size >= 1e9 ? [1e9, 'G'] : size >= 1e6 ? [1e6, 'M'] : size >= 1e4 ? [1e3, 'k'] : [1, ''];
  const rounded = Number((value / unit).toPrecision(4));
  return (size > 0 && size < 1e-3 ? rounded.toExponential() : rounded) + suffix;
}

// Leaves out the highest 1 % of the values if they would flatten the rest.
function axisTop(values) {
  const low = minimum(values), high = maximum(values), usual = quantile(values, 0.99);
  return usual > low && high - low > 3 * (usual - low) ? usual + 0.1 * (usual - low) : high;
}

const drawn = [];  // for the cursor

const narrow = innerWidth < 640;  // a phone: letters keep their size, lines get less room

// series: {name, color, points, faint, dots}; marks: {x, name}, as where a run was resumed
function chart({title, series, wide, xLabel = 'iteration', marks = []}) {
  const shown = series.filter(s => s.points.length), values = shown.flatMap(s => s.points.map(p => p[1]));
  if (!shown.length) return '';
  const below = narrow && wide;  // the legend is below the title
  const [width, height, left, right, top, bottom] =
    narrow ? [380, wide ? 280 : 200, 52, 12, below ? 50 : 34, 38] : [wide ? 1012 : 500, wide ? 340 : 220, 58, 14, 34, 38];
  const xs = shown.flatMap(s => s.points.map(p => p[0]));
  const x = makeAxis(minimum(xs), maximum(xs), narrow ? 4 : wide ? 10 : 6, false);
  const y = makeAxis(Math.min(minimum(values), wide ? Infinity : 0), axisTop(values), 5, true);
  const inner = {x: left - 4, y: top - 4, width: width - left - right + 8, height: height - top - bottom + 8};
  const px = value => (left + (value - x.low) / (x.high - x.low) * (width - left - right)).toFixed(1);
  const py = value => (height - bottom - (value - y.low) / (y.high - y.low) * (height - top - bottom)).toFixed(1);
  const inside = marks.filter(mark => mark.x > x.low && mark.x < x.high);
  const legend = wide ? shown.map(s => html`\u2003<tspan class="key" fill="var(--${s.color})"
    opacity="${s.faint ? 0.45 : 1}">━━</tspan>\u00a0${s.name}`) : [];
  const toX = at => x.low + (at * width - left) / (width - left - right) * (x.high - x.low);  // at: 0 to 1 of the width
  drawn.push({shown, px, toX, legend: html`${legend}`});
  return html`
    <svg class="chart ${wide ? 'wide' : ''}" viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}">
    ${y.ticks.map(t => html`<line class="grid" x1="${left}" x2="${width - right}" y1="${py(t)}" y2="${py(t)}"/>
      <text text-anchor="end" x="${left - 7}" y="${+py(t) + 4}">${tickLabel(t)}</text>`)}
    ${x.ticks.map(t => html`
      <text text-anchor="middle" x="${px(t)}" y="${height - bottom + 16}">${tickLabel(t)}</text>`)}
    <text class="title" x="${left}" y="18">${title}</text>
    <text class="legend" text-anchor="${below ? 'start' : 'end'}" x="${below ? left - 10 : width - right}"
      y="${below ? 36 : 18}">${legend}</text>
    <text text-anchor="end" x="${width - right}" y="${height - 6}">${xLabel}</text>
    <svg x="${inner.x}" y="${inner.y}" width="${inner.width}" height="${inner.height}"
      viewBox="${Object.values(inner).join(' ')}">
    <line class="cursor" y1="${top}" y2="${height - bottom}" visibility="hidden"/>
    ${inside.map(mark => html`<line class="mark" x1="${px(mark.x)}" x2="${px(mark.x)}" y1="${top}"
      y2="${height - bottom}"><title>${mark.name}</title></line>
      ${wide ? html`<text class="mark" text-anchor="end" x="${+px(mark.x) - 4}" y="${height - bottom - 6}">
        ${mark.name}</text>` : ''}`)}
    ${shown.map(s => html`<polyline class="line ${s.faint ? 'faint' : ''}" stroke="var(--${s.color})"
      points="${downsample(s.points, width).map(p => `${px(p[0])},${py(p[1])}`).join(' ')}"/>
      ${(s.dots ? s.points : []).map(p => html`
        <circle r="3" fill="var(--${s.color})" cx="${px(p[0])}" cy="${py(p[1])}"/>`)}`)}
    </svg></svg>`;
}

// A line at the pointer, and the values there in place of the legend.
function addCursor(svg, {shown, px, legend, toX}) {
  const line = svg.querySelector('.cursor'), text = svg.querySelector('.legend');
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect(), at = toX((event.clientX - box.left) / box.width);
    const near = shown.map(s => s.points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    line.setAttribute('visibility', 'visible');
    for (const end of ['x1', 'x2']) line.setAttribute(end, px(near[0][0]));
    text.textContent = near.map((p, i) => `${shown[i].name ?? ''} ${Number(p[1].toPrecision(5))}`).join(', ')
      + ` at ${near[0][0]}`;
  };
  svg.onpointerleave = () => { line.setAttribute('visibility', 'hidden'); text.innerHTML = legend.text; };
}
