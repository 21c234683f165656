// SPDX-License-Identifier: Apache-2.0
// Is the network the bottleneck of data-parallel training ("Is Network the Bottleneck of
// Distributed Training?", 2006.10103, section 3)?
//
// Replays two processes. Gradients become ready in the order of the backward pass and are fused
// into batches, as Horovod does. Batches are all-reduced one after another around a ring of N
// ranks, on a network used fully or to a share. Overhead is the time from the end of the backward
// pass to the end of the last all-reduce:
//   f = T / (T + overhead), T a step with gradient all-reduces that take no time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "whatif/gradients.h"

namespace hocket::whatif {

/// Seconds to add two vectors, by bytes: a table, linear between its rows. Starts from zero before
/// the first row and keeps the rate of the last beyond it. Empty means no time.
class AddTimes {
 public:
  AddTimes() = default;
  explicit AddTimes(double bytes_per_s) : rows_{{bytes_per_s, 1.0}} {}
  /// Bytes and seconds, ascending.
  explicit AddTimes(std::vector<std::pair<double, double>> rows) : rows_(std::move(rows)) {}
  double seconds(double bytes) const;
  bool empty() const { return rows_.empty(); }

 private:
  std::vector<std::pair<double, double>> rows_;
};
/// Reads rows of "BYTES SECONDS", with units or without; '#' begins a comment. Throws Error if
/// there are no such rows.
AddTimes read_add_times(const std::string& path);

struct Fusion {
  double bytes = 64e6;     ///< that a batch holds at most; a greater gradient is one alone
  double timeout = 0.005;  ///< seconds from the first gradient of a batch until it is sent
};

/// Gradients that are summed together, and when they are handed over.
struct Batch {
  double bytes = 0, ready = 0;
};
/// Fuses gradients into batches. A batch is handed over when it holds `fusion.bytes`, or before a
/// gradient that would make it greater. It is also handed over `fusion.timeout` after its first
/// gradient, or with the last gradient.
std::vector<Batch> fuse(const GradientLog& log, const Fusion& fusion);

/// A ring of N ranks on links of `bandwidth` bytes/s (achieved). A codec that takes no time divides
/// payloads by `ratio`.
struct NetworkCase {
  int64_t ranks = 2;
  double bandwidth = 0, ratio = 1;
};

/// Returns the seconds of one batch around a ring: 2 S (N - 1) / (N bandwidth) + (N - 1) add(S /
/// N), of S = bytes / ratio.
double ring_seconds(double bytes, const NetworkCase& network, const AddTimes& add);

/// Returns when the last of `batches` is reduced, one after another.
double end_of_all_reduces(const std::vector<Batch>& batches, const NetworkCase& network,
                          const AddTimes& add);

struct BottleneckOptions {
  std::vector<int64_t> ranks{2, 4, 8, 16, 32, 64};
  std::vector<double> bandwidths{1.25e8, 1.25e9, 3.125e9, 1.25e10};  ///< of links, bytes/s
  std::vector<double> ratios{1, 2, 5, 10};
  double used = 1;  ///< share of a link's bandwidth that is reached
  Fusion fusion;
  AddTimes add;
};

/// f from which scaling counts as almost linear.
inline constexpr double kNearLinear = 0.95;

struct Bottleneck {
  Gradients gradients;
  BottleneckOptions options;
  double bytes = 0;  ///< of gradients of a step, on a rank; the greatest of a set of ranks
  int64_t batches = 0;
  double measured_factor = 0;  ///< f of the run itself; 0: of a table
  double model_factor = 0;     ///< f of the model with the run's ranks and achieved bandwidth
  /// [ranks][bandwidth][ratio], with links used fully, and to the share options.used.
  std::vector<std::vector<std::vector<double>>> factor, used_factor;
  /// [ranks][bandwidth]: least ratio by which f is kNearLinear with links used to that share;
  /// infinite where sums of nothing, too, take longer.
  std::vector<std::vector<double>> ratio_needed;
};

/// Returns the mean overhead over steps as one f.
double scaling_factor(const Gradients& gradients, const Fusion& fusion, const NetworkCase& network,
                      const AddTimes& add);
/// Throws Error on no bandwidth, ratio or number of ranks, or on an impossible one.
Bottleneck find_bottleneck(Gradients gradients, BottleneckOptions options);

std::string to_text(const Bottleneck& found);
/// Writes an object (docs/whatif.md) of seconds, bytes and bytes per second.
void put(const Bottleneck& found, JsonWriter* json);

}  // namespace hocket::whatif
