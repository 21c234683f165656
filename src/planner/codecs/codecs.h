// SPDX-License-Identifier: Apache-2.0
// Choice of a codec per gradient transfer, with the simulator (Espresso, Wang et al., EuroSys 2023,
// arXiv 2205.14465, first called ByteComp, Algorithm 1). Starts without codecs; skips transfers
// before a bubble, a time in which links wait for a gradient, and finds the bubbles anew after each
// decision; by falling size, ties nearest to the output first, takes the codec with the shortest
// step. The paper's algorithm ends there. Here, if a codec for everything is faster still, the same
// continues from it, by rising size and with no codec among the choices, so the result is never
// slower than none or all. Then hosts optionally take over work that shortens the step (offload.h,
// Algorithm 2).
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

/// A codec per transfer of a run, in the order of CodecTrial::transfers(), with the rest of a rule
/// of plan.grad_codec_of ("int8 at_once host"); "none": uncompressed.
using CodecChoice = std::vector<std::string>;

/// Predicted step of a run with a choice of codecs.
struct CodecOutcome {
  double step_s = 0;
  bool fits = true;              ///< into the memory of every rank
  double low_s = 0, high_s = 0;  ///< a real step is expected between them; 0: no interval
  std::string interval_why;      ///< where the two come from
};

/// Use of the links around an uncompressed transfer.
struct TransferTimes {
  double gap_s = 0;            ///< in which no link of its rank carries anything, before it begins
  bool before_bubble = false;  ///< links wait for a later gradient when it is done
};

/// A run with a fixed plan except for gradient codecs, and the basis of its prediction.
class CodecTrial {
 public:
  /// `cluster_file`: empty for this machine. Throws Error if the cluster is too small, or `codecs`
  /// names one that there is not. Throws it also if plan.passes lacks `compress`, or no codec takes
  /// a gradient of the run.
  CodecTrial(const engine::Run& run, const std::string& cluster_file,
             std::optional<cost::Profile> profile, std::vector<std::string> codecs);

  const std::vector<passes::GradSum>& transfers() const { return transfers_; }
  const std::vector<std::string>& codecs() const { return codecs_; }
  const cost::Cluster& cluster() const { return cluster_; }
  /// Returns this codec, or "CODEC host", for every transfer to which it applies.
  CodecChoice all_by(const std::string& codec) const;
  /// The run with these codecs.
  engine::Run run_of(const CodecChoice& choice) const;
  CodecOutcome simulate(const CodecChoice& choice) const;
  /// The same; `times` receives those of every transfer, empty for encoded ones.
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
  bool offload = false;  ///< hosts may encode in place of devices
  /// True ends it with the best so far, even in the middle of a simulation but for the first one,
  /// with which all others are compared.
  std::function<bool()> stop = nullptr;
  /// Called before each simulation: how many there were, and the shortest step.
  std::function<void(int64_t simulated, double best_s)> progress = nullptr;
};

/// Decision for a transfer.
struct CodecDecision {
  std::string codec = passes::kNoCodec;
  double gap_s = 0;      ///< before it, with nothing encoded (TransferTimes)
  double gain_s = 0;     ///< by which the decision shortened the step when it was taken
  bool dropped = false;  ///< not tried: it was before a bubble
};

struct CodecResult {
  std::vector<CodecDecision> decisions;  ///< as CodecTrial::transfers()
  CodecOutcome none, chosen;
  /// By codec, and by "CODEC host" with offload: everything through it. Those before a stop.
  std::vector<std::pair<std::string, CodecOutcome>> all;
  std::optional<OffloadSearch> offload;
  int64_t simulated = 0;
  bool complete = true;  ///< false: it was stopped
  CodecChoice choice() const;
};

/// Chooses codecs with the simulator as the judge. A choice beyond the memory limit is rejected,
/// unless the run does not fit without codecs either. Throws Error for `offload` if the cluster
/// lacks the speed of hosts.
CodecResult choose_codecs(const CodecTrial& trial, const CodecSearchOptions& options = {});

}  // namespace hocket::planner
