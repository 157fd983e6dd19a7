// Options of a request: name, label, default, kind; `only`: in this mode; `when`: only then.
const OPTIONS = [
  {name: 'model', label: 'Model', value: '', kind: 'choice', when: () => models.length > 1, choices: () => models.map(m => m.id)},
  {name: 'system', label: 'System message', value: '', kind: 'lines', only: 'chat'},
  {name: 'max_tokens', label: 'Maximum tokens', value: 1024, kind: 'integer', min: 1},
  {name: 'temperature', label: 'Temperature', value: 1, kind: 'number', min: 0, max: 100, step: 0.1, hint: '0 takes the most probable token'},
  {name: 'top_p', label: 'Top-p', value: 1, kind: 'number', min: 0.01, max: 1, step: 0.01, hint: '1: all tokens'},
  {name: 'top_k', label: 'Top-k', value: 0, kind: 'integer', min: 0, hint: '0: all tokens'},
  {name: 'seed', label: 'Seed', value: '', kind: 'integer', min: 0, hint: 'random'},
  {name: 'n', label: 'Answers', value: 1, kind: 'integer', min: 1, max: 64, only: 'completion'},
  {name: 'stop', label: 'Stop at (one text per line)', value: '', kind: 'lines'},
  {name: 'ignore_eos', label: 'Ignore end of text', value: false, kind: 'flag'},
  {name: 'probabilities', label: 'Probabilities of tokens', value: true, kind: 'flag'},
  {name: 'alternatives', label: 'Alternatives', value: 5, kind: 'integer', min: 0, max: 20},
  {name: 'key', label: 'API key', value: '', kind: 'secret', when: () => needsKey},
];
const DEFAULTS = Object.fromEntries(OPTIONS.map(o => [o.name, o.value]));
const PLACE = 'teratron';

// What the browser keeps; without storage (a private window) it lasts as long as the page.
const store = {
  read(key, otherwise) {
    try { return JSON.parse(localStorage.getItem(`${PLACE}.${key}`)) ?? otherwise; } catch { return otherwise; }
  },
  write(key, value) { try { localStorage.setItem(`${PLACE}.${key}`, JSON.stringify(value)); } catch {} },
};

let options = {...DEFAULTS, ...store.read('options', {})};
let mode = store.read('mode', 'chat');
let models = [];
let needsKey = false;

const headers = () => ({'Content-Type': 'application/json', ...(options.key ? {Authorization: `Bearer ${options.key}`} : {})});

function optionHtml(o) {
  if (o.kind === 'lines') return html`<label class="option wide">${o.label}<textarea rows="2" data-name="${o.name}"></textarea></label>`;
  if (o.kind === 'flag') return html`<label class="option">${o.label}<input type="checkbox" data-name="${o.name}"></label>`;
  if (o.kind === 'choice') return html`<label class="option wide">${o.label}<select data-name="${o.name}">${
    o.choices().map(choice => html`<option>${choice}</option>`)}</select></label>`;
  return html`<label class="option">${o.label}<input data-name="${o.name}" type="${o.kind === 'secret' ? 'password' : 'number'}"
    min="${o.min}" max="${o.max}" step="${o.step ?? 1}" placeholder="${o.hint}" title="${o.hint}" autocomplete="off"></label>`;
}

// `use`: called with the name of an option that was changed.
function drawOptions(use) {
  $('options').innerHTML = html`${OPTIONS.filter(o => (!o.only || o.only === mode) && (!o.when || o.when())).map(optionHtml)}`.text;
  for (const input of $('options').querySelectorAll('[data-name]')) {
    const option = OPTIONS.find(o => o.name === input.dataset.name);
    if (option.kind === 'flag') input.checked = options[option.name];
    else input.value = options[option.name] || (option.kind === 'choice' ? option.choices()[0] : options[option.name]);
    input.onchange = () => {
      options[option.name] = option.kind === 'flag' ? input.checked
        : input.type === 'number' && input.value !== '' ? Number(input.value) : input.value;
      store.write('options', {...options, key: ''});
      use(option.name);
    };
  }
}
