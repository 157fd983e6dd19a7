// Markdown as HTML: headings, lists, quotes, tables, rules, code, emphasis and links. Every piece of text goes through
// html``, so that an answer cannot bring tags, attributes or scripts; links lead to http, https and mailto only.
const MOST_NESTING = 12;
const MOST_ENDS = 40, FARTHEST_END = 4000;  // that are tried: time stays linear
const EMPHASIS = [['***', x => html`<strong><em>${x}</em></strong>`], ['**', x => html`<strong>${x}</strong>`], ['__', x => html`<strong>${x}</strong>`],
  ['~~', x => html`<del>${x}</del>`], ['*', x => html`<em>${x}</em>`], ['_', x => html`<em>${x}</em>`]];
const isWord = c => c !== undefined && /[\p{L}\p{N}]/u.test(c);

// Where emphasis that begins behind `from` ends; -1: nowhere.
function emphasisEnd(text, mark, from) {
  if (/\s/.test(text[from] ?? ' ') || (mark[0] === '_' && isWord(text[from - mark.length - 1]))) return -1;
  let tries = 0;
  for (let at = text.indexOf(mark, from); at > from && at < from + FARTHEST_END && tries < MOST_ENDS; at = text.indexOf(mark, at + 1), ++tries) {
    const doubled = mark.length === 1 && (text[at - 1] === mark || text[at + 1] === mark);
    if (doubled || /\s/.test(text[at - 1]) || (mark[0] === '_' && isWord(text[at + mark.length]))) continue;
    return at;
  }
  return -1;
}

const link = (label, target) => html`<a href="${target}" target="_blank" rel="noopener noreferrer">${label}</a>`;

// One element at `at` of the text: [what it is, where it ends]; null: a plain character.
function spanAt(text, at, depth) {
  const rest = text.slice(at, at + 2000);
  const ticks = /^`+/.exec(rest)?.[0];
  if (ticks) {
    const end = text.indexOf(ticks, at + ticks.length);
    return end < 0 ? [ticks, at + ticks.length]
      : [html`<code>${text.slice(at + ticks.length, end).replace(/^ (.*) $/s, '$1')}</code>`, end + ticks.length];
  }
  const named = /^!?\[([^[\]]*)\]\(((?:https?:\/\/|mailto:)[^\s()]+)\)/.exec(rest);
  if (named) return [link(spans(named[1], depth + 1), named[2]), at + named[0].length];
  const bare = isWord(text[at - 1]) ? null : /^https?:\/\/[^\s<>"'`()[\]]*[^\s<>"'`()[\].,;:!?]/.exec(rest);
  if (bare) return [link(bare[0], bare[0]), at + bare[0].length];
  for (const [mark, make] of EMPHASIS) {
    const end = text.startsWith(mark, at) ? emphasisEnd(text, mark, at + mark.length) : -1;
    if (end > 0) return [make(spans(text.slice(at + mark.length, end), depth + 1)), end + mark.length];
  }
  return null;
}

function spans(text, depth = 0) {
  if (depth > MOST_NESTING) return [text];
  const all = [];
  let plain = '';
  for (let at = 0; at < text.length;) {
    if (text[at] === '\\' && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '')) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    if (text[at] === '\n') { all.push(plain, html`<br>`); plain = ''; ++at; continue; }
    const found = /[`[!*_~h]/.test(text[at]) ? spanAt(text, at, depth) : null;
    if (found) { all.push(plain, found[0]); plain = ''; at = found[1]; } else plain += text[at++];
  }
  return [...all, plain];
}

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const TABLE_RULE = /^ *\|?(?: *:?-+:? *\|)+ *:?-*:? *$/;
const isTable = (lines, i) => lines[i].includes('|') && TABLE_RULE.test(lines[i + 1] ?? '') && (lines[i + 1] ?? '').includes('-');
const isBlank = line => !line.trim();
const beginsBlock = (lines, i) => isBlank(lines[i]) || FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) ||
  /^ {0,3}>/.test(lines[i]) || ITEM.test(lines[i]) || isTable(lines, i);
const indent = line => line.length - line.trimStart().length;

function codeBlock(lines, i) {
  const [, fence, language] = FENCE.exec(lines[i]), first = ++i;
  while (i < lines.length && !(lines[i].trim().startsWith(fence) && !lines[i].trim().replaceAll(fence[0], ''))) ++i;
  return [html`<div class="code"><div class="bar"><span>${language || 'code'}</span><button type="button" class="link"
    data-act="copy-code">Copy</button></div><pre><code>${lines.slice(first, i).join('\n')}</code></pre></div>`, i + 1];
}

function quote(lines, i, depth) {
  const first = i;
  while (i < lines.length && /^ {0,3}>/.test(lines[i])) ++i;
  return [html`<blockquote>${blocks(lines.slice(first, i).map(line => line.replace(/^ {0,3}> ?/, '')), depth + 1)}</blockquote>`, i];
}

function table(lines, i) {
  const cells = line => line.trim().replace(/^\||\|$/g, '').split('|').map(cell => spans(cell.trim()));
  const head = cells(lines[i]), rows = [];
  for (i += 2; i < lines.length && lines[i].includes('|'); ++i) rows.push(cells(lines[i]).slice(0, head.length));
  return [html`<div class="wide"><table><thead><tr>${head.map(c => html`<th>${c}</th>`)}</tr></thead><tbody>${
    rows.map(row => html`<tr>${row.map(c => html`<td>${c}</td>`)}</tr>`)}</tbody></table></div>`, i];
}

function list(lines, i, depth) {
  const [, blanks, mark] = ITEM.exec(lines[i]), ordered = /\d/.test(mark), items = [];
  const isItem = line => { const m = ITEM.exec(line); return m && m[1].length <= blanks.length + 1 && /\d/.test(m[2]) === ordered; };
  while (i < lines.length && isItem(lines[i]) && !RULE.test(lines[i])) {
    const own = ITEM.exec(lines[i]), width = own[1].length + own[2].length + Math.min(own[3].length || 1, 4);
    const content = [own[4]];
    for (++i; i < lines.length; ++i) {
      const next = isBlank(lines[i]) ? lines[i + 1] ?? '' : lines[i];
      const inside = indent(next) >= Math.min(width, blanks.length + 2) && !isBlank(next);
      if (!inside && (isBlank(lines[i]) || beginsBlock(lines, i))) break;
      content.push(lines[i].slice(Math.min(indent(lines[i]), width)));
    }
    items.push(html`<li>${blocks(content, depth + 1)}</li>`);
    if (i + 1 < lines.length && isBlank(lines[i]) && isItem(lines[i + 1])) ++i;
  }
  return [ordered ? html`<ol start="${parseInt(mark, 10)}">${items}</ol>` : html`<ul>${items}</ul>`, i];
}

function paragraph(lines, i) {
  const first = i++;
  while (i < lines.length && !beginsBlock(lines, i)) ++i;
  return [html`<p>${spans(lines.slice(first, i).map(line => line.trim()).join('\n'))}</p>`, i];
}

function blocks(lines, depth = 0) {
  if (depth > MOST_NESTING) return [lines.join('\n')];
  const all = [];
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) { ++i; continue; }
    const heading = HEADING.exec(lines[i]);
    let block;
    if (FENCE.test(lines[i])) [block, i] = codeBlock(lines, i);
    else if (heading) [block, i] = [heading[1].length < 3 ? html`<h3>${spans(heading[2])}</h3>` : html`<h4>${spans(heading[2])}</h4>`, i + 1];
    else if (RULE.test(lines[i])) [block, i] = [html`<hr>`, i + 1];
    else if (/^ {0,3}>/.test(lines[i])) [block, i] = quote(lines, i, depth);
    else if (ITEM.test(lines[i])) [block, i] = list(lines, i, depth);
    else if (isTable(lines, i)) [block, i] = table(lines, i);
    else [block, i] = paragraph(lines, i);
    all.push(block);
  }
  return all;
}

const markdown = text => html`<div class="md">${blocks(text.replaceAll('\t', '    ').split(/\r?\n/))}</div>`;
