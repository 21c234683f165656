// SPDX-License-Identifier: Apache-2.0
// hocket bench: one file per bench, bench_<name>.cc.
#include "cli/apps/bench.h"
#include "cli/verbs.h"

namespace hocket::cli {

void verb_bench(Args& args) {
  args.about("measure parts of this program on this machine", "");
  declare_bench_step(args.sub("step"));
  declare_bench_executor(args.sub("executor"));
  declare_bench_compile(args.sub("compile"));
  declare_bench_serve(args.sub("serve"));
  args.example("hocket bench executor", "the executor's overhead per task");
  args.example("hocket bench compile", "building and checking 100 layers x 64 micro-batches");
}

}  // namespace hocket::cli
