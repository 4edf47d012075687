# Reads Markdown pages and prints `file:line: rule: text` for each breach of the rules of writing in
# src/contributing.md; at the end of a page its long sentences, if they are too many.
# With -v commands=1 it prints the commands of code blocks instead: `file:line verb [verb] [--option ...]`.
BEGIN {
  longest = 30          # words of a sentence
  share = 0.05          # of a page's sentences that may be longer
  columns = 100
  banned = "(beside|anew|reckons?|reckoned|whoever|theirs|those|lies|goes on|went on|go on|for want of)"
  openings = "^(Of|By|Beside|Behind|What|Who|Whoever|Where|Which|Those) "
}

FNR == 1 { finish(); page = FILENAME; fence = 0; code = 0; blank = 1 }
{ line = FNR }
/^ *```/ { flush(); fence = !fence; blank = 0; next }
fence { command($0); next }
/^    / && (blank || code) { flush(); code = 1; blank = 0; command($0); next }
/^[ \t]*$/ { flush(); blank = 1; next }
{ blank = 0; code = 0 }
/^#/ || /^</ || /^!\[/ || /^\[!\[/ { flush(); next }
/^\|/ { flush(); table($0); next }
{
  if (/^ *([-*]|[0-9]+\.) /) flush()
  sub(/^ *([-*]|[0-9]+\.) +/, "")
  if (!commands) {
    if (characters($0) > columns) complain(line, "line of more than " columns " columns", $0)
    text = clean($0)
    if (match(text, /[.!?][)"]* +[A-Z(]/))
      complain(line, "a sentence begins within a line", substr(text, RSTART))
  }
  if (paragraph == "") first = line
  paragraph = paragraph (paragraph == "" ? "" : " ") $0
}
END { finish(); exit bad }

function complain(at, rule, words) {
  printf "%s:%d: %s: %s\n", page, at, rule, substr(words, 1, 90)
  bad = 1
}
function characters(s) { gsub(/[\200-\277]/, "", s); return length(s) }
# A line without marks of Markdown; code counts as one word.
function clean(s) {
  sub(/^\*\*[^*]*\.\*\* */, "", s)  # a heading that runs into its paragraph
  gsub(/!\[[^]]*\]\([^)]*\)/, "", s)
  gsub(/`[^`]*`/, "code", s)
  while (match(s, /\[[^]]*\]\([^)]*\)/)) {
    inner = substr(s, RSTART + 1, RLENGTH - 1)
    sub(/\].*/, "", inner)
    s = substr(s, 1, RSTART - 1) inner substr(s, RSTART + RLENGTH)
  }
  gsub(/\*\*|__/, "", s)
  gsub(/<[^>]*>/, "", s)
  gsub(/e\.g\./, "eg", s); gsub(/i\.e\./, "ie", s); gsub(/vs\./, "vs", s); gsub(/et al\./, "et al", s)
  return s
}
function table(row,   cells, n, i) {
  if (commands || row ~ /^\|[-| :]*$/) return
  gsub(/\\\|/, "/", row)
  n = split(row, cells, "|")
  for (i = 2; i < n; ++i) sentences(clean(cells[i]), line, 1)
}
function flush() {
  if (paragraph != "" && !commands) sentences(clean(paragraph), first, 0)
  paragraph = ""
}
function sentences(s, at, cell,   part, lower) {
  while (s != "") {
    if (match(s, /[.!?]+[)"]*( +|$)/)) {
      part = substr(s, 1, RSTART + RLENGTH - 1); s = substr(s, RSTART + RLENGTH)
    } else { part = s; s = "" }
    sub(/^ +/, "", part); sub(/ +$/, "", part)
    if (part !~ /[A-Za-z]/) continue
    ++num_sentences
    if (words(part) > longest) { ++num_long; long_at[num_long] = at; long_text[num_long] = part }
    if (part !~ /\?/ && match(part, openings)) complain(at, "sentence opening", part)
    lower = " " tolower(part) " "
    gsub(/[^a-z ]/, " ", lower); gsub(/ +/, " ", lower)
    if (match(lower, " " banned " ")) complain(at, "banned word" substr(lower, RSTART, RLENGTH - 1), part)
    if (part !~ /\?/ && match(lower, / what /)) complain(at, "\"what\" as a noun", part)
  }
}
function words(s,   parts, n, i, count) {
  n = split(s, parts, " ")
  for (i = 1; i <= n; ++i) if (parts[i] ~ /[A-Za-z0-9]/) ++count
  return count
}
function finish(   i) {
  flush()
  if (num_long > share * num_sentences + (num_sentences < 20 ? 1 : 0))
    for (i = 1; i <= num_long; ++i)
      complain(long_at[i], "sentence of more than " longest " words (" num_long " of " num_sentences ")", long_text[i])
  num_long = num_sentences = 0
}
function command(s,   parts, n, i, out) {
  if (!commands) return
  sub(/ # .*/, "", s)
  n = split(s, parts, " ")
  for (i = 1; i <= n && parts[i] !~ /(^|\/)brume$/; ++i) ;
  if (i >= n || parts[i + 1] !~ /^[a-z]+$/) return
  out = parts[++i]
  if (out ~ /^(import|export)$/ && i < n) out = out " " parts[++i]
  for (++i; i <= n; ++i) {
    if (parts[i] ~ /^[|;&>]/) break
    if (parts[i] ~ /^--[a-z]/) { sub(/=.*/, "", parts[i]); out = out " " parts[i] }
  }
  print page ":" line " " out
}
