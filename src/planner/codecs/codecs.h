// SPDX-License-Identifier: Apache-2.0
// Which gradients travel through which codec, decided transfer by transfer with the simulator
// (Espresso, Wang et al., EuroSys 2023, arXiv 2205.14465, first called ByteComp, Algorithm 1):
// start without; leave aside what is sent before a bubble, a time in which links wait for a
// gradient, and find the bubbles anew after each decision; by falling size, of one size the nearest
// to the output first, take the codec with the shortest step. The paper's algorithm ends there.
// Here, if a codec for everything is faster still, the same is done from there, by rising size and
// with no codec among the choices: the plan found is never slower than none or all. Then, if it is
// asked for, hosts take over what shortens the step (offload.h, Algorithm 2).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cost/cluster.h"
#include "cost/profile.h"
#include "passes/compress.h"
#include "planner/codecs/offload.h"
#include "program/memory.h"
#include "run/config.h"

namespace hocket::planner {

/// A codec for each transfer of a run, in the order of CodecTrial::transfers(), with what else a
/// rule of plan.grad_codec_of says of it ("int8 at_once host"); "none": as it is.
using CodecChoice = std::vector<std::string>;

/// The step of a run whose gradients travel so.
struct CodecOutcome {
  double step_s = 0;
  bool fits = true;  ///< into the memory of every rank
};

/// What the links do around a transfer that is not encoded.
struct TransferTimes {
  double gap_s = 0;            ///< in which no link of its rank carries anything, before it begins
  bool before_bubble = false;  ///< links wait for a later gradient when it is done
};

/// A run whose plan stays, but for the codecs of its gradients, and what it is predicted with.
class CodecTrial {
 public:
  /// `cluster_file`: empty for this machine. Error: the cluster is too small, `codecs` names one
  /// that there is not, plan.passes lacks `compress`, or no codec takes a gradient of the run.
  CodecTrial(const engine::Run& run, const std::string& cluster_file,
             std::optional<cost::Profile> profile, std::vector<std::string> codecs);

  const std::vector<passes::GradSum>& transfers() const { return transfers_; }
  const std::vector<std::string>& codecs() const { return codecs_; }
  const cost::Cluster& cluster() const { return cluster_; }
  /// All transfers that it takes something of through this codec, or "CODEC host".
  CodecChoice all_by(const std::string& codec) const;
  /// The run with these codecs.
  engine::Run run_of(const CodecChoice& choice) const;
  CodecOutcome simulate(const CodecChoice& choice) const;
  /// The same; `times` receives those of every transfer, empty for what is encoded.
  CodecOutcome simulate(const CodecChoice& choice,
                        std::vector<std::optional<TransferTimes>>* times) const;

 private:
  std::string base_name_;
  std::vector<std::string> kept_;  // "KEY=VALUE" of the run
  std::optional<cost::Profile> profile_;
  std::vector<std::string> codecs_;
  cost::Cluster cluster_;
  std::shared_ptr<const program::Program> evaluation_;  // null: nothing is evaluated
  std::vector<passes::GradSum> transfers_;
};

struct CodecSearchOptions {
  bool offload = false;                  ///< hosts may encode in place of devices
  std::function<bool()> stop = nullptr;  ///< true ends it with the best so far
  /// Called before each simulation: how many there were, and the shortest step.
  std::function<void(int64_t simulated, double best_s)> progress = nullptr;
};

/// What was decided of a transfer.
struct CodecDecision {
  std::string codec = passes::kNoCodec;
  double gap_s = 0;      ///< before it, with nothing encoded (TransferTimes)
  double gain_s = 0;     ///< by which the decision shortened the step when it was taken
  bool dropped = false;  ///< not tried: it was before a bubble
};

struct CodecResult {
  std::vector<CodecDecision> decisions;  ///< as CodecTrial::transfers()
  CodecOutcome none, chosen;
  /// By codec, and by "CODEC host" with offload: everything through it.
  std::vector<std::pair<std::string, CodecOutcome>> all;
  std::optional<OffloadSearch> offload;
  int64_t simulated = 0;
  bool complete = true;  ///< false: it was stopped
  CodecChoice choice() const;
};

/// Chooses with the simulator as the judge. What does not fit into memory is not taken, unless the
/// run does not fit with nothing encoded either. Error: `offload`, and the cluster does not say how
/// fast hosts are.
CodecResult choose_codecs(const CodecTrial& trial, const CodecSearchOptions& options = {});

}  // namespace hocket::planner
