// SPDX-License-Identifier: Apache-2.0
// hocket checkpoint: join
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "checkpoint/join.h"
#include "cli/verbs.h"

namespace hocket::cli {

namespace {

struct CheckpointOptions {
  std::vector<std::string> folders;
  std::string out;
  bool json = false;
};

int join_folders(const CheckpointOptions& options) {
  if (options.out.empty()) {
    fail("checkpoint join", "no folder to write to; try --out DIR");
  }
  const checkpoint::Joined joined = checkpoint::join_checkpoint(options.folders, options.out);
  if (options.json) {
    JsonWriter json;
    json.object()
        .member("out", options.out)
        .member("step", joined.step)
        .member("bytes", joined.bytes)
        .member("hosts", joined.hosts)
        .member("given", static_cast<int64_t>(joined.given_hosts.size()))
        .end();
    fmt::print("{}\n", json.take());
    return 0;
  }
  fmt::print("{}: step {}, {} of tensors, from {} of {}\n", options.out, joined.step,
             human_bytes(static_cast<double>(joined.bytes)),
             counted(static_cast<int64_t>(joined.given_hosts.size()), "folder"),
             counted(joined.hosts, "host"));
  return 0;
}

void declare_join(Args& args) {
  auto options = std::make_shared<CheckpointOptions>();
  args.about("one whole checkpoint from the parts of several hosts",
             "Every DIR is one host's part of the same checkpoint, copied here. All are "
             "compared with their checksums first; files of several hosts are copied once. "
             "Refuses parts of different steps or saves, and names the host and the rank "
             "whose part is missing. The result opens in transformers, eval and generate, and "
             "any plan goes on from it.");
  args.positional("DIR", &options->folders, "a host's folder of the checkpoint");
  args.option("--out", "DIR", &options->out,
              "the whole checkpoint: a folder that is not there yet");
  args.flag("--json", &options->json, "the result as JSON");
  args.example("hocket checkpoint join DIR-A DIR-B --out runs/x/checkpoints/step-000100",
               "of two hosts; training under runs/x then goes on from it");
  args.example("hocket checkpoint join DIR-* --out step-000100 --json", "of many");
  args.run([options] { return join_folders(*options); });
}

}  // namespace

void verb_checkpoint(Args& args) {
  args.about("checkpoint files: join the parts of one from several hosts", "");
  declare_join(args.sub("join"));
  args.example("hocket checkpoint join DIR-A DIR-B --out step-000100",
               "the parts that two hosts saved of one step, as one folder");
  args.example("hocket checkpoint join --help", "the checkpoints that can be joined");
}

}  // namespace hocket::cli
