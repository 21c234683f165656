// SPDX-License-Identifier: Apache-2.0
#include "planner/codecs/espresso.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace hocket::planner {

void EspressoTensor::fields(Fields& visit) {
  visit("name", name, "name of the parameter");
  visit("elements", elements, "number of elements of the gradient").min(1).max(1e15).required();
  visit("gap_us", gap_us, "microseconds since the gradient before was ready").min(0).max(1e12);
}

void EspressoInput::fields(Fields& visit) {
  visit("nodes", nodes, "number of nodes of the cluster").min(1).max(1 << 20);
  visit("gpus_per_node", gpus_per_node, "number of GPUs of a node").min(1).max(1024);
  visit("nvlink", nvlink, "link the GPUs of a node by NVLink, else by PCIe");
  visit("two_level", two_level, "allow codes to travel inside of nodes, too");
  visit("cpu", cpu, "allow CPUs to encode");
  visit("sparse", sparse, "keep some elements, as a sparse codec, else one bit of each");
  visit("ratio", ratio, "share of the elements that a sparse codec keeps").min(0).max(1);
  visit("codec_us", codec_us, "microseconds to encode and decode, by option 0 to 3");
  visit("decode_us", decode_us, "microseconds of these to decode alone");
  visit("tensors", tensors, "gradients, in the order in which they are made");
}

namespace {

/// Treatment of a tensor, before the routes are named.
enum Step : int { kFp32, kFp16, kCodes, kTwoLevels, kOnCpu };

// Constants of the selector: microseconds, per collective and per 1,000 bytes.
constexpr double kAlpha = 150, kIntraNvlink = 0.02, kIntraPcie = 0.4, kInter = 0.8;
/// Bits that a CPU encodes in a microsecond.
constexpr double kCpuBits = 20'000;
/// Elements up to which a codec takes constant time; the largest tensor for CPUs; and the elements
/// from which 1-bit codes take two collectives between nodes.
constexpr double kConstantTimeElements = 1 << 20;
constexpr int64_t kMaxOnCpu = 32 << 20, kManyElements = 1 << 24;
/// us; gaps are counted modulo this.
constexpr int64_t kGapModulo = 1000;
/// Choices of tensors for CPUs that are tried, at most.
constexpr double kMaxChoices = 1e7;

class Selector {
 public:
  explicit Selector(const EspressoInput& input) : in_(input), steps_(input.tensors.size(), kFp32) {
    double time = 0;
    for (const EspressoTensor& tensor : in_.tensors) {
      time += static_cast<double>(tensor.gap_us % kGapModulo);
      ready_.push_back(time);
    }
  }

  std::vector<EspressoOption> run() {
    const size_t plain = last_gap(0, false);
    for (size_t i = plain; i < size(); ++i) {
      steps_[i] = elements(i) > kFp16Above ? kFp16 : kFp32;
    }
    encode_by_size(last_gap(plain, true));
    if (in_.cpu) {
      move_to_cpus();
    }
    std::vector<EspressoOption> options;
    for (size_t i = 0; i < size(); ++i) {
      options.push_back(route_of(i));
    }
    return options;
  }

 private:
  static constexpr int64_t kFp16Above = 1 << 17;

  size_t size() const { return in_.tensors.size(); }
  int64_t elements(size_t i) const { return in_.tensors[i].elements; }
  double ratio() const { return in_.sparse ? 2 * in_.ratio : 1.0 / 32; }

  /// Microseconds in which the tensor is sent.
  double sent_us(size_t i, Step step) const {
    const double bytes = static_cast<double>(elements(i)) * 4;
    double intra = bytes, inter = bytes, collectives = 2;
    switch (step) {
      case kFp32:
        break;
      case kFp16:
        intra = inter = bytes / 2;
        break;
      case kCodes:
      case kOnCpu:
        intra = bytes / 2;
        inter = bytes * ratio();
        break;
      case kTwoLevels:
        intra = inter = bytes * ratio();
        collectives = 4;
        break;
    }
    const auto gpus = static_cast<double>(in_.gpus_per_node),
               nodes = static_cast<double>(in_.nodes);
    const double per_intra = in_.nvlink ? kIntraNvlink : kIntraPcie;
    return collectives * kAlpha + per_intra * std::floor(2 * (gpus - 1) / gpus * intra / 1000) +
           kInter * std::floor(2 * (nodes - 1) / nodes * inter / 1000);
  }
  /// Returns the time for a tensor scattered over the GPUs of a node.
  double by_size(size_t i, double us) const {
    const double part = static_cast<double>(elements(i)) / static_cast<double>(in_.gpus_per_node) /
                        kConstantTimeElements;
    return us * std::max(1.0, part);
  }
  double codec_us(size_t i, Step step) const { return by_size(i, in_.codec_us[step]); }
  double encode_us(size_t i, Step step) const {
    return by_size(i, in_.codec_us[step] - in_.decode_us[step]);
  }

  /// Returns the last tensor from `first` on that the link waits for; encoding delays the following
  /// ones.
  size_t last_gap(size_t first, bool encodes) const {
    size_t last = first;
    double end = 0, encoding = 0;
    for (size_t i = first; i < size(); ++i) {
      encoding += encodes ? encode_us(i, steps_[i]) : 0;
      const double ready = ready_[i] - ready_[first] + encoding;
      if (ready >= end) {
        end = ready;
        last = i;
      }
      end += sent_us(i, steps_[i]);
    }
    return last;
  }

  /// Returns the time at which the tensors from `first` on have been sent, with encoding on GPUs.
  double end_us(size_t first) const {
    double end = 0, encoding = 0;
    for (size_t i = first; i < size(); ++i) {
      encoding += encode_us(i, steps_[i]);
      end = std::max(end, ready_[i] + encoding) + used_us(i);
    }
    return end;
  }
  double used_us(size_t i) const {
    return (steps_[i] >= kCodes ? codec_us(i, steps_[i]) : 0) + sent_us(i, steps_[i]);
  }

  Step codes_of(size_t i) const {
    const int64_t two_levels = in_.nvlink ? 1 << 22 : 1 << 23;
    const int64_t codes = in_.nvlink ? 1 << 19 : 1 << 20;
    if (elements(i) > two_levels && in_.two_level) return kTwoLevels;
    return elements(i) > codes ? kCodes : kFp32;
  }
  /// Tries tensors by falling size, ties the last computed one first, and keeps an encoding that
  /// shortens the step.
  void encode_by_size(size_t first) {
    std::vector<size_t> order;
    for (size_t i = size(); i > first; --i) {
      order.push_back(i - 1);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return elements(a) > elements(b); });
    double best = end_us(first);
    for (const size_t i : order) {
      if (codes_of(i) < kCodes) continue;
      const Step was = steps_[i];
      steps_[i] = codes_of(i);
      const double end = end_us(first);
      if (end < best) {
        best = end;
      } else {
        steps_[i] = was;
      }
    }
  }

  /// The same with the tensors that CPUs encode beside the link.
  double end_with_cpus_us() const {
    double end = 0, cpu_end = 0;
    for (size_t i = 0; i < size(); ++i) {
      if (steps_[i] == kOnCpu) {
        const double encoding = static_cast<double>(elements(i)) * 32 / kCpuBits;
        cpu_end = std::max({end, ready_[i], cpu_end}) + encoding + sent_us(i, kOnCpu);
      } else {
        end = std::max(end, ready_[i]) + used_us(i);
      }
    }
    return std::max(end, cpu_end);
  }
  /// Moves the first of the encoded tensors of one size to CPUs: tries every number of each size.
  void move_to_cpus() {
    std::vector<std::vector<size_t>> groups;
    std::map<int64_t, size_t> place;
    double choices = 1;
    for (size_t i = 0; i < size(); ++i) {
      if (steps_[i] < kCodes || elements(i) >= kMaxOnCpu) continue;
      const auto [group, fresh] = place.try_emplace(elements(i), groups.size());
      if (fresh) {
        groups.emplace_back();
      }
      groups[group->second].push_back(i);
    }
    for (const std::vector<size_t>& group : groups) {
      choices *= static_cast<double>(group.size() + 1);
    }
    if (choices > kMaxChoices) {
      fail("tensors",
           "{:.0f} choices of gradients for CPUs to encode; expected at most {:.0f}; try "
           "cpu: false",
           choices, kMaxChoices);
    }
    best_us_ = end_us(0);
    best_ = steps_;
    try_counts(groups, 0);
    steps_ = best_;
  }
  void try_counts(const std::vector<std::vector<size_t>>& groups, size_t at) {
    if (at == groups.size()) {
      const double end = end_with_cpus_us();
      if (end < best_us_) {
        best_us_ = end;
        best_ = steps_;
      }
      return;
    }
    const std::vector<Step> before = steps_;
    try_counts(groups, at + 1);
    for (const size_t i : groups[at]) {
      steps_[i] = kOnCpu;
      try_counts(groups, at + 1);
    }
    steps_ = before;
  }

  EspressoOption route_of(size_t i) const {
    switch (steps_[i]) {
      case kFp32:
        return {0, "FP32"};
      case kFp16:
        return {1, "FP16"};
      case kCodes:
        if (in_.sparse || elements(i) < kManyElements || in_.nodes <= 3) {
          return {4, "codes between nodes, all-gather"};
        }
        return {3, "codes between nodes, all-to-all and all-gather"};
      case kTwoLevels:
        if (!in_.sparse) return {6, "codes everywhere, all-to-all, gather and broadcast"};
        if (ratio() < 0.005) return {10, "codes everywhere, all-gather"};
        return {9, "codes everywhere, all-to-all, all-gather and broadcast"};
      case kOnCpu:
        return {5, "codes of CPUs between nodes"};
    }
    return {};
  }

  const EspressoInput& in_;
  std::vector<double> ready_;  ///< microseconds, by tensor
  std::vector<Step> steps_;
  double best_us_ = 0;
  std::vector<Step> best_;
};

}  // namespace

std::vector<EspressoOption> espresso_options(const EspressoInput& input) {
  for (const std::vector<double>* times : {&input.codec_us, &input.decode_us}) {
    if (times->size() != 4) {
      fail("codec_us, decode_us", "got {} times; expected 4, of options 0 to 3", times->size());
    }
  }
  return Selector(input).run();
}

}  // namespace hocket::planner
