# Reads C++ headers and prints `file:line: rule: text` for each documentation comment whose sentence has no head:
# one that begins with a preposition, "What" or a pronoun.
BEGIN {
  headless = "^(Of|By|Beside|With|Without|In|At|On|For|From|To|As|Behind|Between|Below|Above|Over|Under|After|Before|" \
             "Within|Into|Onto|Up|Where|What|Who|Whoever|Which|Those|These|Theirs|That) "
}
FNR == 1 { block = trailing = 0 }
match($0, /\/\/\/< /) {
  alone = $0 ~ /^ *\/\/\/< /
  if (!(alone && trailing)) look(substr($0, RSTART + 5), 1)
  trailing = 1
  block = 0
  next
}
match($0, /^ *\/\/\/( |$)/) {
  text = substr($0, RSTART + RLENGTH)
  if (!block) look(text, 0)
  block = text != ""
  trailing = 0
  next
}
{ block = trailing = 0 }
END { exit bad }
function look(text, trailing) {
  sub(/^ *@file +/, "", text)
  if (text ~ /^ *@/) return
  sub(/^\[[^]]*\] */, "", text)
  if (!trailing && text ~ /^[a-z]/) return  # goes on behind a formula
  first = toupper(substr(text, 1, 1)) substr(text, 2)
  if (match(first, headless)) {
    printf "%s:%d: comment begins with \"%s\": %s\n", FILENAME, FNR, substr(first, RSTART, RLENGTH - 1), substr(text, 1, 80)
    bad = 1
  }
}
