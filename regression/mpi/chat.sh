#!/bin/sh
# Conversations: packed by a chat template, learned, asked again by `generate` and by `chat`, in all ways alike.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
complain() { echo "$1"; cat out.log; exit 1; }
cat > chat.jinja <<'END'
{%- for message in messages %}
    {{- '<' ~ message.role ~ '>' ~ message.content ~ ('!\n' if message.role == 'assistant' else '\n') }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
END
# Small models learn few letters: each question has one answer, and so has the question behind it.
awk 'BEGIN { for (k = 0; k < 8; k++) for (i = 0; i < 26; i++) { c = sprintf("%c", 97 + i)
  printf "{\"messages\": [{\"role\": \"user\", \"content\": \"say %s\"}, {\"role\": \"assistant\", \"content\": \"%s%s\"}, ", c, c, c
  printf "{\"role\": \"user\", \"content\": \"more\"}, {\"role\": \"assistant\", \"content\": \"ok\"}]}\n" } }' > chats.jsonl
"$BRUME" import tokens chats.jsonl -o chats --chat-template chat.jinja --valid 0 --show 2 > shown 2> out.log
[ "$(head -5 shown | tr '\n' '|')" = '--- document 1|<user>say a|<assistant>⟦aa!|⟧<user>more|<assistant>⟦ok!|' ] || { cat shown; complain "other text is shown"; }
grep -q '1664 of these tokens are to be learned' out.log || complain "other tokens are learned"
mpirun -n 2 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=2 --set data.train=chats/train.tok \
  --set data.valid= --set data.documents=isolate --set model.seq_len=192 --set output.directory=run --set training.global_batch=8 \
  --set training.steps=400 --set training.optimizer.lr=1e-2 > out.log 2>&1 || complain "no training"

# The same answers to messages, to texts of a user, to the text that the template makes, on one rank and on two.
awk 'BEGIN { for (i = 0; i < 26; i++) { c = sprintf("%c", 97 + i)
  printf "{\"custom_id\": \"q%s\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"say %s\"}]}}\n", c, c > "messages.jsonl"
  printf "say %s\n", c > "texts"; printf "{\"prompt\": \"<user>say %s\\n<assistant>\"}\n", c > "prompts.jsonl" } }'
ask() { # ranks, file of answers, arguments
  ranks=$1 to=$2
  shift 2
  mpirun -n "$ranks" --oversubscribe "$BRUME" generate run -o "$to" --max-tokens 8 --stop '!' "$@" > out.log 2>&1 || complain "no answers"
  sort -t: -k2n "$to" | sed 's/.*"\(text\|content\)":"\([^"]*\)".*/\2/' > "$to.texts"
}
ask 1 a --prompts messages.jsonl --chat-template chat.jinja
ask 2 b --prompts texts --chat --chat-template chat.jinja --tp 2
ask 1 c --prompts prompts.jsonl
cmp a.texts b.texts && cmp a.texts c.texts || complain "answers differ"
right=$(awk '{ c = sprintf("%c", 96 + NR); n += ($0 == c c) } END { print n }' a.texts)
[ "$right" -ge 20 ] || { cat a.texts; complain "only $right answers were learned"; }
# The time that a template asks for does not decide whose answers a file has.
sed '1s/^/{{- strftime_now("%d %H %M %S") }}/' chat.jinja > dated.jinja
head -1 messages.jsonl > one.jsonl
for i in 1 2; do
  "$BRUME" generate run --prompts one.jsonl --chat-template dated.jinja -o dated > out.log 2>&1 || complain "no dated answers"
  sleep 1.1
done
grep -q 'has 1 answer already' out.log || complain "it answers again at another time"
grep -q '"custom_id":"qz","response":{"status_code":200,"body":{"object":"chat.completion","choices":\[{"index":0,"message":{"role":"assistant","content":"[a-z]*"},"finish_reason":"stop"}\],"usage":' a ||
  complain "an answer's line is another one"
ask 1 a --prompts messages.jsonl --chat-template chat.jinja
grep -q 'has 26 answers already' out.log || complain "answers are made again"

# Prompts that begin alike share the keys of their first two blocks, which are computed once.
system=$(printf 'be %.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40)
ask 1 shared --prompts texts --chat --chat-template chat.jinja --system "$system"
grep -q ', 3200 were there already' out.log || complain "no keys are shared"
ask 2 shared.two --prompts texts --chat --chat-template chat.jinja --system "$system" --tp 2 --batch 3
cmp shared.texts shared.two.texts || complain "shared keys change answers"
# Keys that prompts share, by a plan for prompts and one for answers.
plan() { printf 'version = 1\nglobal_batch = 1\nmicrobatches = 1\n'; }
stage() { printf '[[%s.stages]]\nfirst_layer = %d\nlayers = %d\nnodes = 1\ndevices_per_node = %d\nmicrobatch = 1\ndp = 1\ntp = %d\nzero_level = 0\n' "$1" "$2" "$3" "$4" "$4"; }
{ echo '[prompts]'; plan; stage prompts 0 2 1; stage prompts 2 2 1; echo '[answers]'; plan; stage answers 0 4 2; } > phases.toml
ask 2 shared.phases --prompts texts --chat --chat-template chat.jinja --system "$system" --plan phases.toml --batch 16
cmp shared.texts shared.phases.texts && grep -q ', [0-9]* were there already' out.log || complain "keys that two plans share change answers"
refused_soon 2 'a plan of its own for prompts, which a conversation does not use' mpirun -n 2 --oversubscribe "$BRUME" chat run --chat-template chat.jinja --plan phases.toml
ask 1 messages --prompts messages.jsonl --chat-template chat.jinja --system "$system"
cmp shared.texts messages.texts || complain "no system message before messages"

# A conversation in the terminal: the second question has an answer because the first one is there.
talk() { ranks=$1; shift; printf '%s\n' "$@" | mpirun -n "$ranks" --oversubscribe "$BRUME" chat run --chat-template chat.jinja --stop '!' --max-tokens 8 2> out.log; }
talk 1 'say c' 'more' '/undo' 'more' '/save saved.jsonl' '/reset' 'say d' '/none' '' '/save saved.jsonl' '/quit' 'never' > said || complain "no talk"
talk 2 'say c' 'more' '/undo' 'more' '/save other.jsonl' '/reset' 'say d' '/none' '' '/save other.jsonl' > said.two || complain "no talk on two ranks"
cmp said said.two && cmp saved.jsonl other.jsonl || complain "two ranks say something else"
answer=$(sed -n 3p a.texts)
printf '%s\nok\nok\n' "$answer" > expected
head -3 said | cmp - expected || { cat said; complain "other answers in the terminal"; }
grep -q '^/reset' said && grep -q 'there is no /none' out.log || complain "no help"
[ "$(head -1 saved.jsonl)" = "{\"messages\":[{\"role\":\"user\",\"content\":\"say c\"},{\"role\":\"assistant\",\"content\":\"$answer\"},{\"role\":\"user\",\"content\":\"more\"},{\"role\":\"assistant\",\"content\":\"ok\"}]}" ] ||
  { cat saved.jsonl; complain "another conversation is saved"; }
# The last line may lack its end.
[ "$(printf 'say c' | timeout 60 "$BRUME" chat run --chat-template chat.jinja --stop '!' --max-tokens 8 2> out.log)" = "$answer" ] || complain "a line without an end"
# What was saved can be learned.
"$BRUME" import tokens saved.jsonl -o again --chat-template chat.jinja --valid 0 > out.log 2>&1 && grep -q 'packed 2 documents' out.log || complain "saved conversations are not read"
# A conversation that is too long is said, and forgotten.
long=$(head -c 3000 /dev/zero | tr '\0' x)
talk 1 "$long" 'say c' > said && [ "$(cat said)" = "$answer" ] && grep -q 'fit: /reset begins a new conversation' out.log || complain "a long message is not refused"

refused_soon 2 'has no chat template' "$BRUME" chat run
refused_soon 2 'add --chat' "$BRUME" generate run --prompt a --system b
refused_soon 2 'no prompt is a conversation' "$BRUME" generate run --prompt a --chat-template chat.jinja
refused_soon 2 "texts.jinja:1: expected a value, found '%}'" sh -c "printf '{%% if %%}' > texts.jinja; exec \"$BRUME\" generate run --prompt a --chat --chat-template texts.jinja"
