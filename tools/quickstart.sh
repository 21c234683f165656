#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job: a tokenizer and a small mixture-of-experts transformer, trained on the C++ headers that
# came with this machine's compiler. MINUTES=15 trains longer, as a run of its own over the same data in
# runs/quickstart/data. A second call goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${MINUTES:-4}
out=runs/quickstart
[ "$minutes" = 4 ] || out=runs/quickstart-${minutes}min
headers=$(ls -d /usr/include/c++/*/ | sort -V | tail -n 1)
run=(configs/quickstart-muon.yaml --set "data.files=[\"${headers%/}\"]" --set "output.dir=$out"
     --set "train.minutes=$minutes")

began=$SECONDS
echo "== text: ${headers%/}"
build/hocket data train-tokenizer "${run[@]}"
build/hocket data prepare "${run[@]}"
echo "== baselines"
build/hocket data stats runs/quickstart/data --baselines
ready=$SECONDS
echo "== training"
build/hocket train "${run[@]}"
done=$SECONDS
echo
echo "data and baselines $((ready - began)) s, training with validation and report $((done - ready)) s"
cat <<TXT

Try next:
  build/hocket train configs/quickstart.yaml --set output.dir=runs/quickstart-4ranks --set plan.dp=4 --set plan.ep=2 --set plan.micro_batch=1 --set train.minutes=0 --set train.steps=20
  build/hocket simulate configs/qwen3-30b-a3b.yaml --cluster configs/clusters/h100-64x8.yaml
  build/hocket generate $out --prompt '#include <vector>'
TXT
