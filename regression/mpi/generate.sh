#!/bin/sh
# `generate` answers prompts: the same texts alone, in any batch, on any ranks, after a kill, with a cache that is
# too small; each token is the one that `eval` finds most likely.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
tiny_job --steps 4 > train.log 2>&1
complain() { echo "$1"; cat out.log; exit 1; }

awk 'BEGIN { for (i = 0; i < 21; i++) { text = ""; for (k = 0; k <= i % 9; k++) text = text sprintf("%c%c ", 97 + (i * 7 + k) % 26, 97 + (k * k + i) % 26)
  printf "{\"prompt\": \"%s\", \"id\": \"p%d\"}\n", text, i } }' > prompts.jsonl
generate() { # ranks, then arguments; writes answers, sorted by their prompts
  ranks=$1 to=$2
  shift 2
  mpirun -n "$ranks" --oversubscribe "$BRUME" generate run --prompts prompts.jsonl -o "$to" --max-tokens 17 "$@" > out.log 2>&1
  sort -t: -k2n "$to" > "$to.sorted"
}
same() { cmp "$1.sorted" one.sorted || complain "$1 has other answers"; }
generate 1 one --batch 1
[ "$(grep -c '"finish_reason":"length"' one)" -eq 21 ] && grep -q '"index":20.*"id":"p20".*"tokens":17' one || complain "answers are missing"
generate 1 batch --batch 8 && same batch
generate 2 two --batch 3 && same two
generate 2 parts --tp 2 && same parts
generate 4 four --tp 2 --batch 2 && same four
# Room for three of eight sequences.
generate 1 small --batch 8 --cache-gib 0.000184 && same small
grep -q '192.00 KiB of keys' out.log || complain "the cache is of another size"
# On two stages.
stage() { # table, first layer, layers, copies, tp
  printf '[[%sstages]]\nfirst_layer = %d\nlayers = %d\nnodes = 1\ndevices_per_node = %d\nmicrobatch = 1\ndp = %d\ntp = %d\nzero_level = 0\n' "$1" "$2" "$3" $(($4 * $5)) "$4" "$5"; }
batch() { printf 'version = 1\nglobal_batch = %d\nmicrobatches = 1\n' "$1"; }
{ batch 1; stage '' 0 2 1 1; stage '' 2 2 1 1; } > plan.toml
generate 2 stages --plan plan.toml && same stages
# Prompts on two stages, then answers by tensor parallelism, for which keys are cut by heads.
phases() { # copies
  echo '[prompts]'; batch "$1"; stage prompts. 0 2 "$1" 1; stage prompts. 2 2 "$1" 1
  echo '[answers]'; batch "$1"; stage answers. 0 4 "$1" 2
}
phases 1 > phases.toml
generate 2 phases --plan phases.toml --batch 8 && same phases
[ "$(sed -n 's/.*keys changed plans \([0-9]*\) times.*/\1/p' out.log)" -ge 3 ] || complain "no keys changed plans"
phases 2 > copies.toml
generate 4 copies --plan copies.toml --batch 3 && same copies
generate 2 tight --plan phases.toml --batch 8 --cache-gib 0.000184 && same tight
# By a plan that is chosen for generation, which fits the run's ranks and is the fastest one of its list.
"$BRUME" plan "$deck" --set "$profile" --set cluster.devices_per_node=2 --set generation.prompts=21 \
  --set generation.token_s=10 --for generation --json -o chosen.toml > chosen.json 2> out.log || complain "no plan for generation"
generate 2 chosen --plan chosen.toml --batch "$(sed -n 's/^  "batch": \([0-9]*\),/\1/p' chosen.json)" && same chosen
sed -n 's/.*"tokens_per_s": \([0-9.]*\),/\1/p' chosen.json > speeds
[ "$(wc -l < speeds)" -ge 3 ] && [ "$(sort -grs speeds | head -1)" = "$(head -1 speeds)" ] || complain "another plan is faster"
# A pair of plans has the plan of each phase.
"$BRUME" plan "$BRUME_REGRESSION_DIR/../inputs/llama-70b.toml" --set cluster.nodes=1 --set search.tp='[1,8]' --set search.stages='[1,8]' \
  --set generation.prompts=16 --set generation.prompt_tokens=1500 --set generation.answer_tokens=100 --for generation --json -o pair.toml > pair.json 2> out.log ||
  complain "no plan for a large model"
grep -q '^two plans: prompts by pp 8 in .* answers by tp 8 in ' out.log && grep -q '"prompt_stages": 8' pair.json || complain "no pair of plans"
# Copies over the ranks of several nodes.
"$BRUME" plan "$deck" --set "$profile" --set cluster.nodes=3 --set search.tp='[4]' --for generation -o nodes.toml 2> out.log || complain "no plan on several nodes"
grep -q '^dp  *= 3' nodes.toml && grep -q '^devices_per_node  *= 4' nodes.toml || complain "the plan is for other nodes"
code=0; "$BRUME" plan "$deck" --set "$profile" --set generation.token_s=1e-9 --for generation > out.log 2>&1 || code=$?
[ "$code" -eq 3 ] && grep -q 'no plan keeps the limits' out.log || complain "a limit that nothing keeps is kept"

# A kill leaves whole answers and the beginning of one: the same command goes on.
head -5 one > killed
tail -1 one | head -c 20 >> killed
generate 2 killed --plan phases.toml && same killed
generate 1 killed && grep -q 'has 21 answers already' out.log || complain "it begins again"
# Other weights or options are not taken for the same.
for other in '--max-tokens 17 --log-probabilities' '--max-tokens 16' '--max-tokens 17 --temperature 0.5' '--max-tokens 17 --set training.precision=bf16'; do
  code=0; "$BRUME" generate run --prompts prompts.jsonl -o killed $other > out.log 2>&1 || code=$?
  [ "$code" -eq 2 ] && grep -q 'killed:1: was answered by other weights' out.log || complain "answers with $other are mixed"
done
tiny_job --steps 2 --set output.directory=trained_on > train.log 2>&1 || { cat train.log; exit 1; }
code=0; "$BRUME" generate trained_on --prompts prompts.jsonl -o killed --max-tokens 17 > out.log 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q 'killed:1: was answered by other weights' out.log || complain "answers of other weights are mixed"
sed 's/p1/q1/; s/"prompt": "/&x/' prompts.jsonl > others.jsonl
code=0; "$BRUME" generate run --prompts others.jsonl -o one > out.log 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q 'one:1: is no answer to these prompts' out.log || complain "others' answers are taken"

# What is no file of answers stays as it is; one that another job writes is left to it.
printf 'my notes' > notes
code=0; "$BRUME" generate run --prompt a -o notes > out.log 2>&1 || code=$?
[ "$code" -eq 2 ] && [ "$(cat notes)" = 'my notes' ] && grep -q 'notes:1: is no answer' out.log || complain "notes are lost"
code=0; flock killed "$BRUME" generate run --prompts prompts.jsonl -o killed > out.log 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q 'killed: another job writes its answers there' out.log || complain "two jobs write to one file"

# Each token is the most likely one.
if on_host; then
  sed -n 's/.*"prompt":"\([^"]*\)","text":"\([^"]*\)".*/{"prompt": "\1", "completion": "\2"}/p' one > answers.jsonl
  "$BRUME" eval run --completions answers.jsonl > scores 2> out.log
  plain=$(grep -vc 'ufffd\|�\|\\' one)
  [ "$(grep -c '"is_greedy":true' scores)" -ge "$plain" ] && [ "$plain" -gt 3 ] || complain "eval finds other tokens more likely"
fi

# Drawn tokens depend on the seed alone; answers to a prompt differ.
generate 1 drawn --temperature 1.5 --top-k 40 --top-p 0.9 --min-p 0.01 --samples 3 --seed 5
generate 2 again --temperature 1.5 --top-k 40 --top-p 0.9 --min-p 0.01 --samples 3 --seed 5 --batch 5
cmp drawn.sorted again.sorted || complain "drawn answers differ"
generate 1 seeded --temperature 1.5 --top-k 40 --top-p 0.9 --min-p 0.01 --samples 3 --seed 6
! cmp -s drawn.sorted seeded.sorted || complain "the seed changes nothing"
generate 1 more --temperature 1.5 --top-k 40 --top-p 0.9 --min-p 0.01 --samples 4 --seed 5
grep -v '"sample":3' more.sorted | cmp - drawn.sorted || complain "the number of samples changes them"
[ "$(grep '"index":3,' drawn | sed 's/.*"text"//' | sort -u | wc -l)" -eq 3 ] || complain "samples are the same"

# A single prompt's answer is text, and ends before a stop string.
answer=$("$BRUME" generate run --prompt "void main(" --max-tokens 9 2> out.log)
[ -n "$answer" ] || complain "no answer"
first=$(printf %s "$answer" | head -c 1)
[ -z "$("$BRUME" generate run --prompt "void main(" --max-tokens 9 --stop "$first" 2> out.log)" ] || complain "it does not stop"
"$BRUME" generate run --prompt "void main(" --max-tokens 3 --json --log-probabilities 2> out.log |
  grep -q '"finish_reason":"length","prompt_tokens":10,"tokens":3,"log_probability":-' || complain "no line of JSON"

# Prompts that have no answer get a line that says why, the others an answer.
{ printf 'one\n\n'; head -c 300 /dev/zero | tr '\0' q; printf '\nbad \377\376 bytes\r\n'; } > lines.txt
"$BRUME" generate run --prompts lines.txt --max-tokens 4 > lines.out 2> out.log
[ "$(grep -c '"finish_reason":"length"' lines.out)" -eq 2 ] &&
  grep -q '"index":1,.*"error":"the prompt has 300 tokens' lines.out || { cat lines.out; complain "long prompts"; }
# Keys of a request are those of the command line, for its prompt alone.
printf '{"custom_id": "a", "body": {"model": "m", "prompt": "ab", "max_tokens": 5, "temperature": 1.5, "top_k": 40, "seed": 7, "n": 2, "logprobs": 1, "logit_bias": {}}}\n{"prompt": "ab", "max_tokens": 1}\n' > body.jsonl
"$BRUME" generate run --prompts body.jsonl -o body --max-tokens 6 > out.log 2>&1 || complain "no answers to requests"
grep -q 'keys that have no effect: logit_bias, max_tokens (it counts within "body")' out.log || complain "a key is dropped in silence"
"$BRUME" generate run --prompt ab --json --max-tokens 5 --temperature 1.5 --top-k 40 --seed 7 --samples 2 --log-probabilities > options 2> out.log
"$BRUME" generate run --prompt ab --json --max-tokens 6 > plain 2> out.log
answer() { sed 's/.*"text":\("[^"]*"\).*"\(completion_\)*tokens":\([0-9]*\).*/\3 \1/'; }
for i in 0 1; do
  [ "$(grep -c "\"custom_id\":\"a\",\"response\":{\"status_code\":200,\"body\":{\"object\":\"text_completion\",\"choices\":\[{\"index\":$i,\"text\"" body)" -eq 1 ] || complain "choice $i is missing"
done
grep '"custom_id":"a"' body |
  grep '"usage":{"prompt_tokens":2,"completion_tokens":5,"total_tokens":7}.*"error":null' |
  sed 's/,"total_tokens.*//' | answer | sort > body.answers
answer < options | sort | cmp - body.answers || complain "requests have other answers"
grep '^{"index":1,' body | answer > one.answer
answer < plain | cmp - one.answer || complain "a request changes another one"
# The reason why a prompt has no answer does not stay when it is another prompt.
printf '{"body": {"prompt": "%s"}}\n' "$(head -c 300 /dev/zero | tr '\0' q)" > long.jsonl
"$BRUME" generate run --prompts long.jsonl -o long > out.log 2>&1
"$BRUME" generate run --prompts long.jsonl -o long > out.log 2>&1
[ "$(grep -c 'has 300 tokens' long)" -eq 1 ] || complain "the same reason twice"
printf '{"body": {"prompt": "%s"}}\n' "$(head -c 200 /dev/zero | tr '\0' q)" > long.jsonl
"$BRUME" generate run --prompts long.jsonl -o long > out.log 2>&1
grep -q 'has 200 tokens' long || complain "the reason is that of another prompt"

# A Hugging Face model: one value of one tensor is another model.
cp -r "$BRUME_REGRESSION_DIR/data/hugging_face/gpt2" model
"$BRUME" generate model --prompt ab -o model.out --max-tokens 2 > out.log 2>&1 || complain "no answer of a Hugging Face model"
"$BRUME" generate model --prompt ab -o model.out --max-tokens 2 > out.log 2>&1 && grep -q 'has 1 answer already' out.log || complain "it answers again"
file=$(ls model/*.safetensors | tail -1)
printf '\101' | dd of="$file" bs=1 seek=$(($(wc -c < "$file") - 3)) conv=notrunc 2> out.log
code=0; "$BRUME" generate model --prompt ab -o model.out --max-tokens 2 > out.log 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q 'was answered by other weights' out.log || complain "answers of another model are mixed"

printf '\357\273\277{"prompt":"a",}\n' > broken.jsonl
refused() { # sentence, arguments
  code=0; says=$1; shift
  "$BRUME" generate "$@" > out.log 2>&1 || code=$?
  [ "$code" -eq 2 ] && grep -q -- "$says" out.log || complain "exit code $code, expected 2 and: $says"
}
echo '{"messages": [{"role": "user", "content": "hi"}]}' > chat.jsonl
refused 'has no chat template' run --prompts chat.jsonl
echo '{"text": "hi"}' > text.jsonl
refused "text.jsonl:1: needs a 'prompt'" run --prompts text.jsonl
printf '{"body": {"prompt": "a", "top_p": 2}}\n' > range.jsonl
refused "range.jsonl:1: 'top_p' must be a number from 0 to 1" run --prompts range.jsonl
refused 'broken.jsonl:1:1:15: is not JSON' run --prompts broken.jsonl
refused '--temperature must be a number' run --prompt a --temperature nan
refused 'generate needs --prompts FILE or --prompt TEXT' run
refused 'holds no checkpoints and no Hugging Face model' nowhere --prompt a
refused "--end '<s>': tokens are bytes" run --prompt a --end '<s>'
refused 'plan.toml is for 2 ranks, the job has 1' run --prompt a --plan plan.toml
refused 'phases.toml is for 2 ranks, the job has 1' run --prompt a --plan phases.toml
{ sed '/answers/,$d' phases.toml; echo '[answers]'; batch 2; stage answers. 0 4 2 1; } > unlike.toml
code=0; mpirun -n 2 --oversubscribe "$BRUME" generate run --prompt a --plan unlike.toml > out.log 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q 'must have as many copies of the model, found 1 and 2' out.log || complain "plans have unlike copies"
refused 'needs .*--tp 3 does not divide\|--tp 3 does not divide' run --prompt a --tp 3
