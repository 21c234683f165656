// SPDX-License-Identifier: Apache-2.0
// Roofline, profile look-up and α-β formulas.
#include "cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/stats.h"
#include "ops/op.h"

namespace hocket::cost {
namespace {

using ops::CostClass;

/// Returns the class of an op; `memory` for one that this version lacks, which a profile may name.
CostClass cost_class_of(std::string_view op) {
  const ops::Op* const rules = ops::find_or_null(op);
  return rules ? rules->cost_class : CostClass::memory;
}

/// Returns the fraction that a kernel of this size achieves.
double reached(const Fraction& share, const ShareCurve& by_size, double size) {
  return by_size.given() && size > 0 ? by_size.at(size) : share.value;
}

bool is_float8(const graph::TensorType& type) {
  return graph::is_floating(type.dtype) && graph::bits_of(type.dtype) == 8;
}

/// Returns the entry of `of_types` that has the type; null: none.
const TypedShares* shares_of(const Efficiency& efficiency, graph::DType dtype) {
  for (const TypedShares& shares : efficiency.of_types) {
    for (const std::string& type : shares.types) {
      if (type == graph::to_string(dtype)) return &shares;
    }
  }
  return nullptr;
}

double attention_share(const Efficiency& efficiency, graph::DType dtype, double flops) {
  const TypedShares* const typed = shares_of(efficiency, dtype);
  if (typed && (typed->attention.value > 0 || typed->attention_by_flops.given())) {
    return reached(typed->attention, typed->attention_by_flops, flops);
  }
  return reached(efficiency.attention, efficiency.attention_by_flops, flops);
}

double matmul_share(const Efficiency& efficiency, graph::DType dtype, double flops) {
  const TypedShares* const typed = shares_of(efficiency, dtype);
  if (typed && (typed->matmul.value > 0 || typed->matmul_by_flops.given())) {
    return reached(typed->matmul, typed->matmul_by_flops, flops);
  }
  return reached(efficiency.matmul, efficiency.matmul_by_flops, flops);
}

/// Returns the bytes of the 8-bit operands whose last dim is not one that the product reduces over.
/// Matrix units that take only one layout need these copied into it.
double bytes_to_copy(const Kind& kind) {
  const ops::Op* const op = ops::find_or_null(kind.op);
  if (!op || op->cost_class != CostClass::matmul ||
      !std::any_of(kind.in.begin(), kind.in.end(), is_float8)) {
    return 0;
  }
  const ops::Letters letters = ops::letters(*op, kind.in, kind.out);
  double bytes = 0;
  for (size_t i = 0; i < letters.in.size(); ++i) {
    const std::string& dims = letters.in[i];
    if (is_float8(kind.in[i]) && !dims.empty() &&
        letters.out[0].find(dims.back()) != std::string::npos) {
      bytes += static_cast<double>(kind.in[i].bytes());
    }
  }
  return bytes;
}

/// Returns the number of logits of a fused loss, of operands [tokens, width] and [vocabulary,
/// width]; 0 for other kinds.
double logits_of(const Kind& kind) {
  if (kind.op != "linear_cross_entropy") return 0;
  return static_cast<double>(kind.in[0].dims[0]) * static_cast<double>(kind.in[1].dims[0]);
}

int64_t to_ns(double seconds) {
  // A duration out of range is an input error: of the cluster file or the profile.
  constexpr double kMaxSeconds = static_cast<double>(kMaxTaskNs) * 1e-9;
  if (!(seconds >= 0 && seconds <= kMaxSeconds)) {
    fail("cost",
         "a task would take {:.7g} s; expected at most {:.7g}; try other constants in the cluster "
         "file or profile",
         seconds, kMaxSeconds);
  }
  return static_cast<int64_t>(std::llround(seconds * 1e9));
}

}  // namespace

const char* to_string(Provenance provenance) {
  switch (provenance) {
    case Provenance::timed:
      return "timed";
    case Provenance::interpolated:
      return "interpolated";
    case Provenance::learned:
      return "learned";
    case Provenance::analytic:
      return "analytic";
  }
  return "?";
}

program::Kernels kernels_of(const Cluster& cluster) {
  return cluster.device_is_host() ? program::Kernels::on_copies : program::Kernels::native;
}

CostModel::CostModel(Cluster cluster, std::optional<Profile> profile, int64_t threads,
                     std::optional<comm::Collectives> collectives)
    : cluster_(std::move(cluster)),
      profile_(std::move(profile)),
      threads_(std::max<int64_t>(1, threads)),
      collectives_(collectives) {
  // Every other device type has a model of its own, with the profile if it has the same devices.
  // For type 0 the profile replaces the file's constants by measurements. It gives the times of
  // exact tasks (`timed_`), of an op at several sizes for interpolation (`points_`), and the error
  // of that interpolation (measure_interpolation_error).
  for (size_t type = 1; type < cluster_.num_device_types(); ++type) {
    const NodeGroup& nodes = cluster_.heterogeneous_nodes[type - 1];
    std::optional<Profile> other;
    if (profile_ && nodes.cluster.empty()) {
      other = scaled(*profile_, nodes.speed, nodes.bandwidth);
    }
    others_.emplace_back(cluster_.homogeneous(type), other, threads, collectives);
  }
  if (!profile_) return;
  if (const std::string why = mismatch(*profile_, cluster_); !why.empty()) {
    fail("cost", "the profile {}", why);
  }
  replace_links();
  replace_device();
  learn_from_tasks();
}

void CostModel::replace_links() {
  const auto replace = [&](const char* name, Link& link) {
    const auto it = profile_->links.find(name);
    if (it == profile_->links.end()) return;
    link = {};
    link.latency = {it->second.latency_ns * 1e-9, "profile"};
    link.bandwidth = {it->second.bytes_per_s, "profile"};
    link.efficiency = {1, "profile"};
    if (it->second.collective_bytes_per_s > 0) {
      link.direct.latency = {it->second.collective_latency_ns * 1e-9, "profile"};
      link.direct.bandwidth = {it->second.collective_bytes_per_s, "profile"};
    }
    // The wider of both links decides, and is replaced last.
    cluster_.device.overlap.compute = {it->second.compute_slowdown, "profile"};
    cluster_.device.overlap.communication = {it->second.collective_slowdown, "profile"};
  };
  replace("intra", cluster_.links.intra);
  if (cluster_.nodes > 1) {
    replace("inter", cluster_.links.inter);
  }
}

void CostModel::replace_device() {
  if (cluster_.cores_per_node > 0 && profile_->cores > 0) {
    cluster_.cores_per_node = profile_->cores;
  }
  // The profile measured a rank with its threads; the file's device is one core where cores are
  // shared.
  const double cores = cluster_.cores_per_node > 0 ? static_cast<double>(profile_->threads) : 1;
  Device& device = cluster_.device;
  if (profile_->memory_bytes_per_s > 0) {
    device.memory_bandwidth = {profile_->memory_bytes_per_s / cores, "profile"};
    device.efficiency.memory = {1, "profile"};
  }
  for (const auto& [dtype, rate] : profile_->peak_flops) {
    if (rate <= 0) continue;
    if (dtype == "f32") {
      device.peak.f32 = {rate / cores, "profile"};
    }
    if (dtype == "f64") {
      device.peak.f64 = {rate / cores, "profile"};
    }
    if (dtype == "bf16" || dtype == "f16") {
      device.peak.bf16 = {rate / cores, "profile"};
    }
  }
}

void CostModel::learn_from_tasks() {
  std::vector<TimedLeaf> leaves;
  for (const TimedTask& task : profile_->tasks) {
    timed_.emplace(task.key,
                   TaskCost{task.ns + profile_->task_overhead_ns, Provenance::timed, task.spread});
    if (task.flops <= 0 && task.bytes <= 0) continue;
    const double roofline =
        roofline_s(task.op, graph::parse_dtype(task.dtype), task.flops, task.bytes);
    if (roofline <= 0) continue;
    fastest_share_ = std::min(fastest_share_, static_cast<double>(task.ns) * 1e-9 / roofline);
    if (task.ns <= 0) continue;
    leaves.push_back(
        {{task.op, cost_class_of(task.op), roofline, task.flops, static_cast<double>(task.bytes)},
         static_cast<double>(task.ns)});
    points_[{task.op, task.dtype}].push_back({roofline, static_cast<double>(task.ns)});
  }
  for (auto& [key, points] : points_) {
    std::sort(points.begin(), points.end(), [](const Point& left, const Point& right) {
      return std::tie(left.roofline_s, left.ns) < std::tie(right.roofline_s, right.ns);
    });
    // Sizes with equal rooflines are merged into their mean.
    std::vector<Point> merged;
    for (size_t i = 0; i < points.size();) {
      size_t end = i;
      double sum = 0;
      for (; end < points.size() && points[end].roofline_s == points[i].roofline_s; ++end) {
        sum += points[end].ns;
      }
      merged.push_back({points[i].roofline_s, sum / static_cast<double>(end - i)});
      i = end;
    }
    points = std::move(merged);
  }
  measure_interpolation_error();
  learned_.emplace(leaves);
}

CostModel CostModel::at_best() const {
  if (others_.empty()) return *this;
  // Measurements of a profile are in the model of their device type and hold for that type only.
  // The best is taken over the constants that remain after each profile has replaced its own.
  CostModel best = *this;
  for (size_t type = 1; type <= others_.size(); ++type) {
    best.cluster_.heterogeneous_nodes[type - 1].device = others_[type - 1].cluster_.device;
    best.cluster_.heterogeneous_nodes[type - 1].links = others_[type - 1].cluster_.links;
    best.fastest_share_ = std::min(best.fastest_share_, others_[type - 1].fastest_share_);
  }
  best.cluster_ = best.cluster_.at_best();
  best.others_.clear();
  best.timed_.clear();
  best.points_.clear();
  best.interpolation_error_.clear();
  best.learned_.reset();
  return best;
}

/// Computes the median error over the sizes of an op, each predicted from the other sizes.
void CostModel::measure_interpolation_error() {
  for (const auto& [key, points] : points_) {
    if (points.size() < 3) continue;
    std::vector<double> errors;
    for (size_t i = 0; i < points.size(); ++i) {
      std::vector<Point> others = points;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      const double ratio = scaled_ns(others, points[i].roofline_s) / points[i].ns;
      errors.push_back(std::max(ratio, 1 / ratio) - 1);
    }
    interpolation_error_[key] = median(errors);
  }
}

double CostModel::scale() const {
  return cluster_.cores_per_node > 0 ? static_cast<double>(threads_) : 1;
}

double CostModel::memory_s(double bytes) const {
  const Efficiency& efficiency = cluster_.device.efficiency;
  return bytes / (cluster_.device.memory_bandwidth.value *
                  reached(efficiency.memory, efficiency.memory_by_bytes, bytes) * scale());
}

double CostModel::roofline_s(std::string_view op, graph::DType dtype, double flops,
                             int64_t bytes) const {
  const Device& device = cluster_.device;
  const double scale = this->scale();
  const Efficiency& efficiency = device.efficiency;
  const double memory = memory_s(static_cast<double>(bytes));
  double compute = 0;
  if (flops > 0) {
    using graph::DType;
    double share = 1;
    switch (cost_class_of(op)) {
      case CostClass::matmul:
        share = matmul_share(efficiency, dtype, flops);
        break;
      case CostClass::attention:
        share = attention_share(efficiency, dtype, flops);
        break;
      case CostClass::memory:
        // Matrix units do not help here: elementwise work runs at the f32 rate at best. A device
        // without a given f64 rate still does the few f64 sums of losses and norms.
        if (device.peak.f32.value > 0 && (dtype != DType::f64 || device.peak.f64.value <= 0)) {
          dtype = DType::f32;
        }
        break;
    }
    compute = flops / (cluster_.peak_flops(dtype) * share * scale);
  }
  return std::max(memory, compute);
}

/// Interpolates log(time) piecewise linearly in log(roofline); outside the timed sizes, scales the
/// nearest one in proportion to the roofline.
double CostModel::scaled_ns(const std::vector<Point>& points, double roofline) const {
  const auto above =
      std::lower_bound(points.begin(), points.end(), roofline,
                       [](const Point& point, double size) { return point.roofline_s < size; });
  if (above == points.end()) return points.back().ns * roofline / points.back().roofline_s;
  if (above == points.begin()) return above->ns * roofline / above->roofline_s;
  const Point& below = *(above - 1);
  const Point& beyond = *above;
  const double share =
      std::log(roofline / below.roofline_s) / std::log(beyond.roofline_s / below.roofline_s);
  return std::exp(std::log(below.ns) + share * (std::log(beyond.ns) - std::log(below.ns)));
}

TaskCost CostModel::work(const Kind& kind, uint32_t accumulate, size_t device_type,
                         program::Lane lane) const {
  if (device_type > 0) return others_[device_type - 1].work(kind, accumulate, 0, lane);
  if (program::is_of_host(lane) && !cluster_.device_is_host()) return host_work(kind, lane);
  TaskCost cost = balanced_work(kind, accumulate);
  if (const double times = profile_ ? busiest(*profile_, kind) : 1; times > 1) {
    cost.ns = to_ns(static_cast<double>(cost.ns) * 1e-9 * times);
  }
  return cost;
}

TaskCost CostModel::host_work(const Kind& kind, program::Lane lane) const {
  const Host& host = cluster_.device.host;
  if (!cluster_.knows_hosts()) {
    fail(cluster_.name,
         "{} runs in the lane {}, but the cluster does not give the speed of hosts; "
         "expected device.host.kernels and device.host.copies (docs/cluster-files.md)",
         kind.op, program::to_string(lane));
  }
  const int64_t overhead = profile_ ? profile_->task_overhead_ns : 0;
  const double seconds =
      lane == program::Lane::host
          ? static_cast<double>(kind.bytes) / host.kernels.value
          : host.copy_latency.value + static_cast<double>(kind.out[0].bytes()) / host.copies.value;
  return {to_ns(seconds) + overhead, Provenance::analytic};
}

double CostModel::payload(const Kind& kind) const {
  return static_cast<double>(kind.bytes) * (profile_ ? busiest(*profile_, kind) : 1);
}

double CostModel::logits_bytes(const Kind& kind) const {
  const Logits& logits = cluster_.framework.logits;
  if (kind.op != "dlogits") return logits.memory.value * logits_of(kind);
  const graph::TensorType& of_ranks = kind.in[0];
  const double all = logits.of_split() * static_cast<double>(of_ranks.numel());
  return std::max(0.0, all - static_cast<double>(of_ranks.bytes() + kind.out[0].bytes()));
}

int64_t CostModel::more_launches_ns(const Kind& kind) const {
  const bool grouped = cost_class_of(kind.op) == CostClass::matmul && kind.in[0].routed();
  if (!grouped) return 0;
  const double experts = static_cast<double>(kind.in[0].dims[0]);
  return to_ns(experts * cluster_.device.host_launch_expert.value);
}

bool CostModel::host_reads(const Kind& kind) const {
  const std::vector<std::string>& read = cluster_.device.host_reads.ops;
  return std::find(read.begin(), read.end(), kind.op) != read.end();
}

const UnfusedOps* CostModel::unfused(std::string_view op) const {
  for (const UnfusedOps& unfused : cluster_.device.unfused_ops) {
    if (std::find(unfused.ops.begin(), unfused.ops.end(), op) != unfused.ops.end()) return &unfused;
  }
  return nullptr;
}

double CostModel::accumulated_bytes(const Kind& kind, uint32_t accumulate) const {
  // The values that outputs accumulate into are read. The number of rows routed to experts is known
  // to their kind only, which counts those bytes.
  const graph::OutputSet added = graph::OutputSet::of_bits(accumulate);
  double bytes = 0;
  for (size_t output = 0; output < kind.out.size(); ++output) {
    if (added.contains(output) && !kind.out[output].routed()) {
      bytes += static_cast<double>(kind.out[output].bytes());
    }
  }
  return bytes;
}

double CostModel::float8_s(const Kind& kind) const {
  const Float8& float8 = cluster_.device.float8;
  double bytes = 2 * float8.copies.value * bytes_to_copy(kind);
  const bool casts = kind.in.size() == 1 && kind.out.size() == 1 && is_float8(kind.out[0]) &&
                     cost_class_of(kind.op) == CostClass::memory && !is_float8(kind.in[0]);
  if (casts) {
    bytes += float8.maxima.value * static_cast<double>(kind.in[0].bytes());
  }
  return bytes > 0 ? memory_s(bytes) : 0;
}

/// Returns the cost under balanced routing: equally many rows for every expert.
TaskCost CostModel::balanced_work(const Kind& kind, uint32_t accumulate) const {
  const int64_t overhead = profile_ ? profile_->task_overhead_ns : 0;
  if (profile_) {
    const auto it = timed_.find(kind_key(kind, accumulate));
    if (it != timed_.end()) return it->second;
  }
  const graph::DType dtype = program::compute_dtype(kind);
  const double roofline = roofline_s(kind.op, dtype, kind.flops, kind.bytes);
  if (profile_ && roofline > 0) {
    const OpType key{kind.op, graph::to_string(dtype)};
    if (const auto it = points_.find(key); it != points_.end()) {
      const auto error = interpolation_error_.find(key);
      return {to_ns(scaled_ns(it->second, roofline) * 1e-9) + overhead, Provenance::interpolated,
              error == interpolation_error_.end() ? -1 : error->second};
    }
  }
  if (learned_ && learned_->useful() && roofline > 0) {
    const Leaf leaf{kind.op, cost_class_of(kind.op), roofline, kind.flops,
                    static_cast<double>(kind.bytes)};
    return {to_ns(learned_->ns(leaf) * 1e-9) + overhead, Provenance::learned, learned_->held_out()};
  }
  const UnfusedOps* const unfused = this->unfused(kind.op);
  const double times = unfused ? unfused->traffic : 1;
  const double bytes =
      times * static_cast<double>(kind.bytes) + accumulated_bytes(kind, accumulate);
  const double alone = roofline_s(kind.op, dtype, kind.flops, static_cast<int64_t>(bytes));
  const double launches =
      cluster_.device.launch.value * static_cast<double>(unfused ? unfused->kernels : 1);
  const double logits = memory_s(cluster_.framework.logits.traffic.value * logits_of(kind));
  return {to_ns(alone + logits + float8_s(kind) + launches) + overhead, Provenance::analytic};
}

/// Returns the algorithms of an op's record for this number of members, or the direct exchange that
/// processes do themselves.
std::vector<comm::Algorithm> CostModel::algorithms(const comm::Op& op, double members,
                                                   double payload) const {
  if (!op.algorithms) {
    fail("cost", "no cost of a transfer by {}; expected a collective or a send", op.name);
  }
  std::vector<comm::Algorithm> list = op.algorithms(members, payload);
  if (op.role != comm::Role::collective || collectives_ != comm::Collectives::own) return list;
  const auto fewest = [](const comm::Algorithm& left, const comm::Algorithm& right) {
    return left.bytes < right.bytes;
  };
  const double bytes = std::min_element(list.begin(), list.end(), fewest)->bytes;
  return {{.name = "exchange",
           .rounds = static_cast<double>(op.phases),
           .bytes = bytes,
           .direct = true}};
}

std::vector<AlgorithmTime> CostModel::algorithm_times(const comm::Op& op, double payload,
                                                      bool inter, const GroupShape& shape) const {
  if (shape.device_types != 1) {
    // On nodes of several device types, the type on which the collective takes longest decides.
    std::vector<AlgorithmTime> slowest;
    GroupShape alike = shape;
    alike.device_types = 1;
    for (size_t type = 0; type <= others_.size(); ++type) {
      if ((shape.device_types >> type & 1) == 0) continue;
      const CostModel& costs = of_device_type(type);
      std::vector<AlgorithmTime> list = costs.algorithm_times(op, payload, inter, alike);
      if (slowest.empty() || list.front().seconds() > slowest.front().seconds()) {
        slowest = std::move(list);
      }
    }
    return slowest;
  }
  // The actual nodes of the ranks decide. A program lowered for smaller nodes keeps its queue, and
  // its ranks count as if each were on a node of its own.
  GroupShape lies = shape;
  if (inter && shape.nodes == 1 && cluster_.nodes > 1) {
    lies = {shape.members, shape.members, 1};
    for (Spread& spread : lies.levels) {
      spread = {1, shape.members};
    }
  }
  const std::vector<comm::Algorithm> list = algorithms(op, shape.members, payload);
  const MeasuredTimes* measured = cluster_.measured_on(op.name, lies);
  std::vector<AlgorithmTime> found = cost::algorithm_times(cluster_, list, lies);
  if (!cluster_.algorithms.empty() && std::string_view(list.front().name) == "ring") {
    const std::vector<AlgorithmTime> more = hierarchical(cluster_, list.front(), lies);
    found.insert(found.end(), more.begin(), more.end());
    std::stable_sort(found.begin(), found.end(),
                     [](const AlgorithmTime& left, const AlgorithmTime& right) {
                       return left.seconds() < right.seconds();
                     });
  }
  if (measured && payload >= 1 && collectives_ != comm::Collectives::own) {
    AlgorithmTime time;
    time.algorithm = time.busiest = "measured";
    time.data_s = measured->seconds(payload);
    found.insert(found.begin(), time);
  }
  return found;
}

TaskCost CostModel::transfer(const Kind& kind, uint32_t accumulate, bool inter,
                             const GroupShape& shape) const {
  const int64_t overhead = profile_ ? profile_->task_overhead_ns : 0;
  if (profile_ && shape.device_types == 1) {
    const auto it = timed_.find(kind_key(kind, accumulate, shape));
    if (it != timed_.end()) return it->second;
  }
  if (shape.members <= 1) return {overhead, Provenance::analytic};
  if (!program::is_communication(kind)) {
    fail("cost", "no cost of a transfer by {}; expected a collective or a send", kind.op);
  }
  // All members start together; the fastest form is taken.
  const AlgorithmTime first =
      algorithm_times(comm::op(kind.communication), payload(kind), inter, shape).front();
  const bool crosses = shape.nodes > 1 || (inter && cluster_.nodes > 1);
  const bool fitted = (profile_ && profile_->links.count(crosses ? "inter" : "intra") > 0) ||
                      first.algorithm == "measured";
  return {to_ns(first.seconds()) + overhead,
          fitted ? Provenance::interpolated : Provenance::analytic};
}

LinkLoad CostModel::load(const Kind& kind, bool inter, const GroupShape& shape) const {
  // A form known only by measurement loads links as the fastest form with a formula does.
  if (shape.members <= 1 || !program::is_communication(kind)) return {};
  const std::vector<AlgorithmTime> list =
      algorithm_times(comm::op(kind.communication), payload(kind), inter, shape);
  const bool measured = list.front().algorithm == "measured" && list.size() > 1;
  const AlgorithmTime& time = list[measured ? 1 : 0];
  LinkLoad load;
  if (time.data_s <= 0) return load;
  load.data = time.data_s / time.seconds();
  for (size_t block = 0; block < kLinkBlocks; ++block) {
    load.share[block] = std::min(1.0, time.busy_s[block] / time.data_s);
  }
  return load;
}

}  // namespace hocket::cost
