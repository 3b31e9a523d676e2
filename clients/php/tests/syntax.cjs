// Checks that the client needs no PHP later than 7.4: node syntax.cjs NODE_MODULES
const fs = require('fs');
const path = require('path');
const { Engine } = require(path.join(process.argv[2], 'php-parser'));

// What the parser takes although PHP 7.4 does not have it.
const LATER_FUNCTIONS = /^(str_contains|str_starts_with|str_ends_with|get_debug_type|get_resource_id|fdiv|array_is_list|fsync|json_validate|array_find|array_any|array_all|mb_str_pad)$/;
const LATER_TYPES = /^(mixed|static|never|true|false|null)$/;

function later(node, parent) {
  if (node.kind === 'uniontype' || node.kind === 'intersectiontype') return 'a type of several types';
  if (node.kind === 'parameter' && node.flags) return 'a promoted parameter';
  if (node.kind === 'property' && node.readonly) return 'a readonly property';
  if (node.kind === 'typereference' && LATER_TYPES.test(node.raw)) return `the type ${node.raw}`;
  if (node.kind === 'call' && LATER_FUNCTIONS.test(node.what.name)) return `the function ${node.what.name}`;
  if (node.kind === 'staticlookup' && node.offset.name === 'class' && node.what.kind === 'variable') return '$object::class';
  return null;
}

function walk(node, found) {
  if (Array.isArray(node)) return node.forEach((child) => walk(child, found));
  if (node === null || typeof node !== 'object' || !node.kind) return undefined;
  const what = later(node);
  if (what) found.push(`line ${node.loc.start.line}: ${what}`);
  return Object.keys(node).forEach((key) => key !== 'loc' && walk(node[key], found));
}

function findings(code) {
  const engine = new Engine({ parser: { version: '7.4' }, ast: { withPositions: true } });
  const found = [];
  try {
    walk(engine.parseCode(code, ''), found);
  } catch (e) {
    found.push(e.message);
  }
  return found;
}

// The check itself: each of these is newer than 7.4.
for (const code of ['$a?->b;', 'f(x: 1);', 'echo match(1) {};', 'class A { function __construct(private int $x) {} }',
  'function f(int|string $a) {}', 'enum A { case B; }', 'function f(int $a,) {}', 'try {} catch (E) {}', 'f(...);',
  '$x ?? throw $e;', 'function f(): static {}', 'class A { public readonly int $x; }',
  'str_contains("a", "b");', '$o::class;', 'function f(mixed $x) {}']) {
  if (findings(`<?php ${code}`).length === 0) throw new Error(`the check does not see ${code}`);
}

const root = path.join(__dirname, '..');
const files = ['.', 'src', 'compat', 'examples', 'tests'].flatMap((folder) =>
  fs.readdirSync(path.join(root, folder)).filter((name) => name.endsWith('.php')).map((name) => path.join(folder, name)));
if (files.length < 10) throw new Error(`only ${files.length} files are found`);
const found = files.flatMap((file) => findings(fs.readFileSync(path.join(root, file), 'utf8')).map((what) => `${file}: ${what}`));
found.forEach((line) => console.log(line));
process.exit(found.length > 0 ? 1 : 0);
