// SPDX-License-Identifier: Apache-2.0
#include "planner/codecs/sum_options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cost/rooted.h"
#include "ops/op.h"

namespace hocket::planner {

using graph::TensorType;
using program::Lane;

namespace {

/// Collectives in their order, whatever travels.
struct SkeletonStep {
  Over over;
  SumPart part;
};
using Skeleton = std::vector<SkeletonStep>;

Skeleton whole(Over over) { return {{over, SumPart::whole}}; }
Skeleton scattered(Over over) { return {{over, SumPart::scatter}, {over, SumPart::gather}}; }
Skeleton by_root(Over over) { return {{over, SumPart::to_root}, {over, SumPart::from_root}}; }

std::vector<Skeleton> skeletons() {
  std::vector<Skeleton> all{whole(Over::all), scattered(Over::all), by_root(Over::all)};
  for (const Skeleton& inside : {scattered(Over::inside), by_root(Over::inside)}) {
    for (const Skeleton& between :
         {whole(Over::between), scattered(Over::between), by_root(Over::between)}) {
      Skeleton both{inside[0]};
      both.insert(both.end(), between.begin(), between.end());
      both.push_back(inside[1]);
      all.push_back(std::move(both));
    }
  }
  return all;
}

class Paths {
 public:
  explicit Paths(std::vector<SumOption>* all) : all_(*all) {}

  void add(const Skeleton& skeleton) { go_on(skeleton, 0, false); }

 private:
  /// Goes on from before the collective `at`, with codes or with the gradient. These stay as they
  /// are, or go through a codec; codes may need two works for that.
  void go_on(const Skeleton& skeleton, size_t at, bool codes) {
    if (at == skeleton.size()) {
      end(codes);
      return;
    }
    communicate(skeleton, at, codes);
    for (const bool on_host : {false, true}) {
      path_.push_back({codes ? SumAct::Kind::decode : SumAct::Kind::encode, on_host});
      communicate(skeleton, at, !codes);
      for (const bool again_on_host : {false, true}) {
        if (!codes) break;
        path_.push_back({SumAct::Kind::encode, again_on_host});
        communicate(skeleton, at, true);
        path_.pop_back();
      }
      path_.pop_back();
    }
  }
  void communicate(const Skeleton& skeleton, size_t at, bool codes) {
    const SkeletonStep& step = skeleton[at];
    path_.push_back({SumAct::Kind::communicate, false, step.part, step.over, codes});
    go_on(skeleton, at + 1, codes);
    path_.pop_back();
  }
  void end(bool codes) {
    if (!codes) {
      all_.push_back(path_);
      return;
    }
    for (const bool on_host : {false, true}) {
      path_.push_back({SumAct::Kind::decode, on_host});
      all_.push_back(path_);
      path_.pop_back();
    }
  }

  std::vector<SumOption>& all_;
  SumOption path_;
};

const char* routine_of(const SumAct& act) {
  switch (act.part) {
    case SumPart::whole:
      return act.codes ? "all_gather" : "all_reduce";
    case SumPart::scatter:
      return act.codes ? "all_to_all" : "reduce_scatter";
    case SumPart::gather:
      return "all_gather";
    case SumPart::to_root:
      return act.codes ? "gather" : "reduce";
    case SumPart::from_root:
      return "broadcast";
  }
  return "";
}
const char* text_of(Over over) {
  switch (over) {
    case Over::all:
      return "";
    case Over::inside:
      return " inside";
    case Over::between:
      return " between";
  }
  return "";
}

constexpr double kElement = 4;  ///< bytes of an f32

/// Returns a type of about this many elements as rows, for codecs.
TensorType rows_of(double elements) {
  constexpr double kRow = 1024;
  const double rows = std::max(1.0, std::ceil(elements / kRow));
  const double columns = std::max(1.0, std::ceil(elements / rows));
  return {graph::DType::f32, {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}};
}

}  // namespace

std::vector<SumOption> sum_options() {
  std::vector<SumOption> all;
  Paths paths(&all);
  for (const Skeleton& skeleton : skeletons()) {
    paths.add(skeleton);
  }
  return all;
}

bool is_flat(const SumOption& option) {
  return std::all_of(option.begin(), option.end(),
                     [](const SumAct& act) { return act.over == Over::all; });
}
bool works_on_host(const SumOption& option) {
  return std::any_of(option.begin(), option.end(), [](const SumAct& act) { return act.on_host; });
}
bool is_encoded(const SumOption& option) {
  return std::any_of(option.begin(), option.end(),
                     [](const SumAct& act) { return act.kind != SumAct::Kind::communicate; });
}

std::string to_string(const SumOption& option) {
  std::string text;
  for (const SumAct& act : option) {
    text += text.empty() ? "" : ", ";
    if (act.kind == SumAct::Kind::communicate) {
      text += routine_of(act);
      text += text_of(act.over);
    } else {
      text += act.kind == SumAct::Kind::encode ? "encode" : "decode";
      text += act.on_host ? " (host)" : "";
    }
  }
  return text;
}

/// A rank's state of the sum.
struct SumCosts::State {
  double elements = 0;
  double pieces = 1;  ///< that are to be added up: of codes there may be several
  bool codes = false;
  bool on_host = false;
  double at_once = 1;  ///< ranks of a node that sum up parts between nodes at the same time
};

SumCosts::SumCosts(const cost::CostModel& costs, int64_t nodes, int64_t per_node,
                   const passes::CodecOps& codec)
    : costs_(costs),
      codec_(codec),
      nodes_(static_cast<double>(nodes)),
      per_node_(static_cast<double>(per_node)) {
  const auto stride = static_cast<int32_t>(costs.cluster().devices_per_node);
  std::vector<int32_t> all, inside, between;
  for (int32_t node = 0; node < nodes; ++node) {
    between.push_back(node * stride);
    for (int32_t rank = 0; rank < per_node; ++rank) {
      all.push_back(node * stride + rank);
    }
  }
  inside.assign(all.begin(), all.begin() + per_node);
  all_ = costs.cluster().shape(all);
  inside_ = costs.cluster().shape(inside);
  between_ = costs.cluster().shape(between);
}

double SumCosts::seconds(const SumOption& option, double bytes) const {
  State state;
  state.elements = bytes / kElement;
  double time = 0;
  for (const SumAct& act : option) {
    time += act.kind == SumAct::Kind::communicate ? communicate(act, &state) : work(act, &state);
  }
  return time + bring(false, &state);
}

double SumCosts::members(Over over) const {
  switch (over) {
    case Over::all:
      return nodes_ * per_node_;
    case Over::inside:
      return per_node_;
    case Over::between:
      return nodes_;
  }
  return 1;
}
const cost::GroupShape& SumCosts::shape(Over over) const {
  return over == Over::all ? all_ : over == Over::inside ? inside_ : between_;
}

/// Returns the bytes of all pieces.
double SumCosts::bytes(const State& state) const {
  if (!state.codes) return state.elements * kElement;
  double bytes = 0;
  for (const TensorType& code : codec_.codes(rows_of(state.elements))) {
    bytes += static_cast<double>(code.bytes());
  }
  return state.pieces * bytes;
}

/// Prices a collective, and updates the state. A sum scattered inside of nodes continues between
/// them on all ranks of a node at once.
double SumCosts::communicate(const SumAct& act, State* state) const {
  const double time = bring(false, state) + collective_s(act, *state);
  const double n = members(act.over);
  if (act.part == SumPart::scatter) {
    state->elements /= n;
  }
  if (act.part == SumPart::gather) {
    state->elements *= n;
  }
  if (act.codes && act.part != SumPart::gather && act.part != SumPart::from_root) {
    state->pieces *= n;
  }
  if (act.over == Over::inside) {
    state->at_once = act.part == SumPart::scatter ? n : 1;
  }
  return time;
}

double SumCosts::collective_s(const SumAct& act, const State& state) const {
  const double n = members(act.over);
  const double payload = bytes(state);
  // A gathering op is priced by its output.
  const bool gathers = act.part == SumPart::gather ||
                       (act.codes && (act.part == SumPart::whole || act.part == SumPart::to_root));
  const std::vector<cost::AlgorithmTime> times = costs_.algorithm_times(
      *cost::find_costed(routine_of(act)), gathers ? n * payload : payload, false, shape(act.over));
  const auto adapters = static_cast<double>(costs_.cluster().topology.adapters_per_node);
  const double share =
      act.over == Over::between && adapters > 0 ? std::max(1.0, state.at_once / adapters) : 1;
  double best = 0;
  for (const cost::AlgorithmTime& each : times) {
    const double time = each.start_s + each.latency_s + each.data_s * share;
    best = best == 0 ? time : std::min(best, time);
  }
  return best;
}

/// Prices encoding; or decoding and adding all pieces.
double SumCosts::work(const SumAct& act, State* state) const {
  const Lane lane = act.on_host ? Lane::host : Lane::compute;
  const TensorType type = rows_of(state->elements);
  double time = bring(act.on_host, state);
  if (act.kind == SumAct::Kind::encode) {
    time += kernel_s(codec_.encode->name, {}, {type}, codec_.codes(type), lane);
  } else {
    time += state->pieces * kernel_s(codec_.decode->name, passes::CodecOps::back_to(type),
                                     codec_.codes(type), {type}, lane);
    time += (state->pieces - 1) *
            kernel_s(ops::of(ops::Meaning::sum).name, {}, {type, type}, {type}, lane);
  }
  state->codes = act.kind == SumAct::Kind::encode;
  state->pieces = 1;
  return time;
}

/// Prices copying the data to the other memory, if they are not there.
double SumCosts::bring(bool to_host, State* state) const {
  if (state->on_host == to_host) return 0;
  state->on_host = to_host;
  const TensorType moved = rows_of(bytes(*state) / kElement);
  return kernel_s(ops::of(ops::Meaning::identity).name, {}, {moved}, {moved},
                  to_host ? Lane::d2h : Lane::h2d);
}

double SumCosts::kernel_s(const std::string& op, const graph::Attrs& attrs,
                          std::vector<TensorType> in, std::vector<TensorType> out,
                          Lane lane) const {
  cost::Kind kind{.op = op, .attrs = attrs, .in = std::move(in), .out = std::move(out)};
  const ops::Cost cost = ops::cost_of(ops::find(op), {kind.attrs, kind.in, kind.out, 0, {}});
  kind.flops = cost.flops;
  kind.bytes = cost.bytes;
  return static_cast<double>(costs_.work(kind, 0, 0, lane).ns) * 1e-9;
}

}  // namespace hocket::planner
