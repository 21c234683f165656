// SPDX-License-Identifier: Apache-2.0
// Ops of a rank from its PyTorch profile, and their dependencies within the rank.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "whatif/kineto_profile.h"

namespace hocket::whatif::kineto {

/// Op of a device that waits for nothing that the profile shows.
inline constexpr const char* kDeviceIdle = "device idle";
/// Op of a host before its first call in a step.
inline constexpr const char* kHostStart = "host start";

/// Worker, name and sequence: the key of an op in assemble().
using OpKey = std::tuple<PatternWorkerId, NameId, int32_t>;

/// An op of a rank, and when it ended.
struct OpEnd {
  NameId name = kNone;
  int32_t sequence = kNone;
  double end = 0;
  bool of_last_step = false;  ///< that is, of the one before the step that waits for it
};

/// Payload of a collective.
struct Sent {
  int64_t bytes = 0;
  bool of_backward = false;  ///< a sum that a thread of the backward pass launched
};

/// Names of ops, by their ids.
struct Names {
  std::vector<std::string> list;
  std::map<std::string, NameId> ids;
};

/// Dependencies of ops, and their payloads.
struct Waits {
  std::map<OpKey, std::vector<OpEnd>> of;
  std::map<OpKey, Sent> sent;
};

/// Goes through the calls of a rank's host. Each call is an op, and so is the kernel or copy that
/// it launches. A host may be steps ahead of its device. Each of its steps begins where the one
/// before ended, and streams finish the ops of that step first.
class RankOps {
 public:
  /// `begins` gives the begin of steps without a predecessor. Time of `least_idle` seconds or more
  /// in which an activity could have begun and did not becomes an op of its own, kDeviceIdle.
  RankOps(const Profile& profile, PatternWorkerId worker, const std::map<int64_t, double>& begins,
          double least_idle, Names* names);

  void add_ops(const std::set<int64_t>& steps, std::vector<Observed>* seen);
  /// Adds the dependencies of one step, with those on the step before if that is among `steps`.
  void add_waits(const std::set<int64_t>& steps, int64_t step, Waits* waits);

 private:
  struct Stream {
    std::vector<OpEnd> ops;  ///< of a step, in their order
    size_t met = 0;          ///< how many the host had launched when it last made streams wait
  };
  using Streams = std::map<int32_t, Stream>;

  void run(const std::set<int64_t>& steps);
  void begin_step(const Activity& call);
  std::vector<OpEnd> waits_of_host(const Activity& call) const;
  std::vector<OpEnd> stream_waits(const Activity& activity) const;
  void add_unseen(const Activity& activity, std::vector<OpEnd>* waits) const;
  OpEnd add_call(const Activity& call);
  std::vector<OpEnd> calls_before(const Activity& call);
  void let_streams_meet();
  void add_launched(const Activity& call, const OpEnd& launch);
  void add_activity(const Activity& call, const Activity& activity, const OpEnd& launch);
  void add_idle(const Activity& activity, std::vector<OpEnd>* waits);
  void add(const Observed& op, std::vector<OpEnd> waits);
  Observed observed(const std::string& name, int32_t stream);

  const Profile& profile_;
  const PatternWorkerId worker_;
  const std::map<int64_t, double>& begins_;
  const double least_idle_;
  Names& names_;
  std::map<int64_t, int32_t> threads_;  ///< in the order of their first calls
  // Receives the ops seen; null to skip them.
  std::vector<Observed>* seen_ = nullptr;
  Waits* waits_ = nullptr;
  int64_t step_of_waits_ = kNone;  ///< the only step to collect dependencies of

  std::map<std::pair<int64_t, NameId>, int32_t> count_;  ///< of ops, by step
  // The current step.
  int64_t step_ = kNone;
  std::map<int32_t, double> earlier_;  ///< by stream: end of work of absent steps before
  Streams streams_, left_;             ///< `left_`: with ops of the step before
  std::set<int32_t> untold_;           ///< streams with an op since the host last made streams wait
  std::vector<OpEnd> running_;         ///< calls that have not ended
  OpEnd ended_;                        ///< the call that ended last
  std::map<int64_t, OpEnd> last_by_;   ///< by thread: its last call
};

}  // namespace hocket::whatif::kineto
