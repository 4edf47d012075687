#!/bin/sh
# The walk in the tutorial from conversations to a model that answers, line by line, with a small model.
set -eu
. "$BRUME_REGRESSION_DIR/walk.sh"
mkdir Llama-3.2-1B
cp "$BRUME_REGRESSION_DIR"/data/hugging_face/llama_grouped/* "$BRUME_REGRESSION_DIR/data/hugging_face/gpt2/tokenizer.json" Llama-3.2-1B
echo '{"eos_token": "<|endoftext|>"}' > Llama-3.2-1B/tokenizer_config.json
awk 'BEGIN { for (i = 0; i < 128; i++) { line = "{\"messages\": [{\"role\": \"user\", \"content\": \"%s?\"}, {\"role\": \"assistant\", \"content\": \"%s.\"}]}\n"
  printf line, "Who", "Me"; printf line, "Why", "Fun" } }' > chats.jsonl

walk 'A model that answers' 6
# This model is random, so its adapter learns at a higher rate.
own="--set cluster.profile=$BRUME_REGRESSION_DIR/decks/profile.toml --set training.optimizer.lr=1e-2"
sed -i -e ':join' -e '/\\$/N; s/\\\n *//; tjoin' walk
sed -i "s|brume run .*|& $own|; s|brume import hf .*|& --set model.seq_len=64|; s|^build/brume chat .*|printf 'Why?\\\\nWho?\\\\n' \\| & --max-tokens 8|" walk
sh -eux walk > said 2> log || { cat said log; fail "the walk ends early"; }
cat said log
grep -q '⟦Me.<|endoftext|>⟧' said || fail "other text is shown"
tail -3 said > last
printf 'Me.\nFun.\nMe.\n' | cmp - last || fail "the model has not learned to answer"
# The adapter that was exported answers too, on the model that it was trained on.
for weights in Llama-3.2-1B runs/chat; do
  code=0
  build/brume generate $weights --adapter adapter --set model.seq_len=64 --chat --chat-template inputs/chat.jinja --prompt 'Why?' > said 2> log || code=$?
  case $weights in
    runs/chat) [ $code -eq 2 ] && grep -q 'have an adapter of their own' log || fail "two adapters are taken" ;;
    *) [ "$(cat said)" = Fun. ] || { cat log; fail "the adapter says $(cat said)"; } ;;
  esac
done
build/brume eval Llama-3.2-1B --adapter adapter --data chats/valid.tok --set model.seq_len=64 --set data.documents=isolate --set training.precision=bf16 --json > one 2> log || { cat log; fail "no evaluation"; }
build/brume eval runs/chat --json > own 2> log
loss() { sed 's/.*"loss":\([0-9.]*\).*/\1/' "$1"; }
awk -v a="$(loss one)" -v b="$(loss own)" 'BEGIN { d = a - b; exit !(a > 0 && d * d < 1e-4 * b * b) }' || { cat one own; fail "losses differ"; }
