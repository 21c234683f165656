// SPDX-License-Identifier: Apache-2.0
// Weighted least squares of relative errors in non-negative constants, alternating with the choice
// of algorithm and protocol that explains each sample.
#include "cost/link_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/linear.h"
#include "base/stats.h"
#include "base/text.h"
#include "cost/collective.h"
#include "cost/rooted.h"

namespace hocket::cost {
namespace {

/// Minimum number of samples that determine a curve.
constexpr ptrdiff_t kMinSamples = 4;

/// Columns of the linear model: start, steps, megabytes and their square root, in microseconds.
constexpr size_t kColumns = 4;
using Row = std::array<double, kColumns>;

/// One equation: sum of row x constants = us, with a weight. `of_group`: weight of its group.
struct Equation {
  Row row{};
  double us = 0, of_group = 1, weight = 1;
};

/// Normal equations A x = b of weighted least squares, and the sum of squares at x = 0.
struct Normal {
  std::array<Row, kColumns> a{};
  Row b{};
  double squares = 0;

  explicit Normal(const std::vector<Equation>& equations) {
    for (const Equation& e : equations) {
      for (size_t i = 0; i < kColumns; ++i) {
        for (size_t j = 0; j < kColumns; ++j) {
          a[i][j] += e.weight * e.row[i] * e.row[j];
        }
        b[i] += e.weight * e.row[i] * e.us;
      }
      squares += e.weight * e.us * e.us;
    }
  }
  /// Returns the sum of squared residuals at x.
  double left(const Row& x) const {
    double sum = squares;
    for (size_t i = 0; i < kColumns; ++i) {
      sum -= 2 * x[i] * b[i];
      for (size_t j = 0; j < kColumns; ++j) {
        sum += x[i] * a[i][j] * x[j];
      }
    }
    return sum;
  }
};

/// Solves the normal equations in the columns of `use`; false if they are singular.
bool solve(const Normal& normal, unsigned use, Row* found) {
  std::vector<size_t> columns;
  for (size_t c = 0; c < kColumns; ++c) {
    if ((use >> c & 1U) != 0) {
      columns.push_back(c);
    }
  }
  std::vector<std::vector<double>> rows;
  for (const size_t i : columns) {
    std::vector<double>& row = rows.emplace_back();
    for (const size_t j : columns) {
      row.push_back(normal.a[i][j]);
    }
    row.push_back(normal.b[i]);
  }
  const std::vector<double> x = solve_normal(std::move(rows));
  *found = {};
  for (size_t i = 0; i < x.size(); ++i) {
    (*found)[columns[i]] = x[i];
  }
  return !x.empty();
}

double value_of(const Row& row, const Row& constants) {
  double us = 0;
  for (size_t c = 0; c < kColumns; ++c) {
    us += row[c] * constants[c];
  }
  return us;
}

/// Returns the non-negative weighted least-squares solution in the columns that `free` allows. It
/// tries all subsets of columns, which is exact and fast for four.
Row least_squares(const std::vector<Equation>& equations, unsigned free) {
  const Normal normal(equations);
  Row best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned use = 1; use < 1U << kColumns; ++use) {
    Row found;
    if ((use & ~free) != 0 || !solve(normal, use, &found)) continue;
    if (std::any_of(found.begin(), found.end(), [](double x) { return x < 0; })) continue;
    const double squares = normal.left(found);
    if (squares < least) {
      least = squares;
      best = found;
    }
  }
  return best;
}

/// Fits as least_squares() does, on relative errors with a pseudo-Huber loss. Errors beyond 5 %
/// count less and less, so that a few disturbed measurements do not bend the fit.
Row robust(std::vector<Equation> equations, unsigned free) {
  constexpr double kOutlierError = 0.05;
  Row found{};
  for (int round = 0; round < 20; ++round) {
    for (Equation& e : equations) {
      const double measured = e.us;
      const double off = round == 0 ? 0 : (value_of(e.row, found) - measured) / measured;
      e.weight = e.of_group / (measured * measured) /
                 std::sqrt(1 + (off / kOutlierError) * (off / kOutlierError));
    }
    found = least_squares(equations, free);
  }
  return found;
}

/// Terms of one sample under one algorithm and one protocol, for a class of links.
struct Option {
  bool short_messages = false;
  Row row{};
  double known_us = 0;  ///< of other links, or of constants that are not fitted
};

struct Explained {
  double us = 0, of_group = 1;
  std::vector<Option> options;
  size_t chosen = 0;
};

std::vector<comm::Algorithm> algorithms_of(const CommSample& sample) {
  return find_costed(sample.op)->algorithms(sample.ranks, sample.bytes);
}

GroupShape shape_of(const Cluster& cluster, const CommSample& sample) {
  // Ranks are placed node after node, as launchers do. Uneven groups count as even.
  GroupShape shape{sample.ranks, sample.nodes, sample.per_node};
  for (size_t i = 0; i < cluster.topology.levels.size(); ++i) {
    const auto devices = static_cast<int32_t>(cluster.topology.levels[i].devices);
    const auto per_node = static_cast<int32_t>(cluster.devices_per_node);
    if (devices > per_node) {
      const int32_t nodes = devices / per_node;
      shape.levels[i] = {(sample.nodes + nodes - 1) / nodes,
                         std::min(nodes, sample.nodes) * sample.per_node};
    } else {
      const int32_t sets = (sample.per_node + devices - 1) / devices;
      shape.levels[i] = {sets * sample.nodes, std::min(devices, sample.per_node)};
    }
  }
  return shape;
}

using GroupKey = std::tuple<std::string, int32_t, int32_t>;
GroupKey key_of(const CommSample& sample) { return {sample.op, sample.ranks, sample.nodes}; }

/// Curve of a link class that a sample informs.
enum class Family { ring, direct, message };
Family family_of(const CommSample& sample) {
  const std::vector<comm::Algorithm> algorithms = algorithms_of(sample);
  if (algorithms.front().direct) return Family::direct;
  return std::string_view(algorithms.front().name) == "message" ? Family::message : Family::ring;
}

/// Share of a network's bandwidth that NCCL's trees reach, rings being 1: ncclTopoTuneModel in
/// src/graph/tuning.cc (2.10 to 2.27).
constexpr double kTreeShare = 0.92;

/// Fit of one curve of one class of links, from the samples of its family. `given_start`: a
/// network's transfers start as those inside nodes, if these starts are known.
class CurveFit {
 public:
  CurveFit(const Cluster& cluster, bool inter, bool given_start, std::vector<CommSample> samples)
      : cluster_(cluster), inter_(inter), given_start_(given_start && start(false) > 0) {
    // Latency and start can be separated only if groups differ in their steps. If the start inside
    // nodes is known, the network's is the same, since it is the same kernel's.
    std::set<std::pair<int32_t, int32_t>> groups;
    std::map<GroupKey, double> times;
    for (const CommSample& sample : samples) {
      groups.insert({sample.ranks, sample.nodes});
      ++times[key_of(sample)];
    }
    const double mean = static_cast<double>(samples.size()) / static_cast<double>(times.size());
    free_ = (given_start_ ? 0U : 1U) | (groups.size() > 1 || given_start_ ? 2U : 0U) | 4U;
    for (const CommSample& sample : samples) {
      // Groups count alike, whatever the number of their sizes.
      const double of_group = mean / times[key_of(sample)];
      explained_.push_back({sample.seconds * 1e6, of_group, options_of(sample), 0});
      const bool small = sample.bytes < kMinJudgedBytes;
      Explained& last = explained_.back();
      for (size_t i = 0; i < last.options.size(); ++i) {
        if (last.options[i].short_messages == small) {
          last.chosen = i;
          break;
        }
      }
    }
  }

  /// Alternates between fitting and choosing until nothing changes.
  void run() {
    constexpr int kRounds = 40;
    for (int round = 0; round < kRounds; ++round) {
      fit(false, free_ | 8U, &long_);
      if (!fit(true, free_, &short_)) {
        short_ = {};
      }
      if (!choose()) break;
    }
  }

  bool has_short() const { return short_[2] > 0; }
  Curve curve(bool short_messages, const std::string& source) const {
    const Row& found = short_messages ? short_ : long_;
    Curve curve;
    curve.start = {found[0] * 1e-6, source};
    if ((free_ & 1U) == 0) {
      curve.start = {start(short_messages), source};
    }
    curve.latency = {found[1] * 1e-6, source};
    if ((free_ & 2U) == 0) {
      const Link& link = inter_ ? cluster_.links.inter : cluster_.links.intra;
      curve.latency = short_messages ? link.short_messages.latency : link.latency;
    }
    curve.bandwidth = {found[2] > 0 ? 1e12 / found[2] : 0, source};
    const double root = found[2] > 0 ? found[3] / found[2] : 0;
    curve.half_size = {root * root * 1e6, source};
    return curve;
  }

 private:
  /// Returns the seconds of the start inside nodes, which groups over nodes share.
  double start(bool short_messages) const {
    const Link& near = cluster_.links.intra;
    return short_messages && near.short_messages.given() ? near.short_messages.start.value
                                                         : near.start.value;
  }

  /// Returns the seconds of a step, where the samples do not determine it.
  double given_latency(bool short_messages) const {
    const Link& link = inter_ ? cluster_.links.inter : cluster_.links.intra;
    return short_messages ? link.short_messages.latency.value : link.latency.value;
  }

  std::vector<Option> options_of(const CommSample& sample) const {
    std::vector<Option> options;
    const GroupShape shape = shape_of(cluster_, sample);
    for (const comm::Algorithm& algorithm : algorithms_of(sample)) {
      for (const bool short_messages : {false, true}) {
        // Messages and direct exchanges have one protocol only.
        if (short_messages && family_of(sample) != Family::ring) continue;
        Option option{.short_messages = short_messages};
        option.row[0] = 1;
        for (const LevelDemand& demand : level_demands(cluster_, algorithm, shape)) {
          if (demand.inter == inter_) {
            option.row[1] += demand.steps;
            if ((free_ & 2U) == 0) {
              option.known_us += demand.steps * given_latency(short_messages) * 1e6;
            }
            const double megabytes = demand.bytes / demand.adapters * 1e-6;
            if (demand.level < 0) {
              const bool tree =
                  inter_ && !short_messages && std::string_view(algorithm.name) == "tree";
              const double share = tree ? kTreeShare : 1;
              option.row[2] = megabytes / share;
              option.row[3] = short_messages ? 0 : std::sqrt(megabytes) / share;
            }
          } else {
            const Curve curve = curve_of(cluster_.links.intra, algorithm.name, short_messages);
            option.known_us += demand.steps * curve.latency.value * 1e6;
          }
        }
        if (given_start_) {
          option.row[0] = 0;
          option.known_us += start(short_messages) * 1e6;
        }
        options.push_back(option);
      }
    }
    return options;
  }

  /// Fits the samples that the protocol explains; false if they are too few.
  bool fit(bool short_messages, unsigned free, Row* found) {
    std::vector<Equation> equations;
    for (const Explained& sample : explained_) {
      const Option& option = sample.options[sample.chosen];
      if (option.short_messages != short_messages) continue;
      const double us = sample.us - option.known_us;
      if (us > 0.05 * sample.us) {
        equations.push_back({option.row, us, sample.of_group});
      }
    }
    if (std::ssize(equations) < kMinSamples) return false;
    *found = robust(equations, free);
    return true;
  }

  /// Assigns to each sample its fastest option; returns whether any changed.
  bool choose() {
    bool changed = false;
    for (Explained& sample : explained_) {
      double least = std::numeric_limits<double>::infinity();
      size_t best = sample.chosen;
      for (size_t i = 0; i < sample.options.size(); ++i) {
        const Option& option = sample.options[i];
        if (option.short_messages && !has_short()) continue;
        const double us =
            option.known_us + value_of(option.row, option.short_messages ? short_ : long_);
        if (us < least) {
          least = us;
          best = i;
        }
      }
      changed = changed || best != sample.chosen;
      sample.chosen = best;
    }
    return changed;
  }

  const Cluster& cluster_;
  bool inter_;
  bool given_start_;
  unsigned free_ = 0;  // bit set of columns that the samples determine
  std::vector<Explained> explained_;
  Row long_{}, short_{};
};

/// Returns the samples without those that show the host's launches rather than links. A process
/// that drives several devices launches them one after another, which bounds its times from below.
std::vector<CommSample> without_launches(const std::vector<CommSample>& samples,
                                         int64_t* left_out) {
  constexpr double kLaunchBoundRatio = 1.15;
  using Group = std::tuple<std::string, int32_t, int32_t, int32_t>;
  const auto group = [](const CommSample& s) {
    return Group{s.op, s.ranks, s.nodes, s.per_process};
  };
  std::map<Group, double> least;
  for (const CommSample& s : samples) {
    const auto [it, fresh] = least.emplace(group(s), s.seconds);
    it->second = std::min(it->second, s.seconds);
  }
  std::vector<CommSample> kept;
  for (const CommSample& s : samples) {
    if (s.per_process > 1 && s.seconds < kLaunchBoundRatio * least[group(s)]) {
      ++*left_out;
    } else {
      kept.push_back(s);
    }
  }
  return kept;
}

/// Returns a description such as "all_reduce of 2, 4, 8 ranks, 64 sizes from 8 KiB to 1 GiB".
std::string described(const std::vector<CommSample>& samples) {
  std::set<std::string> ops;
  std::set<int32_t> ranks;
  double least = samples.front().bytes, most = least;
  for (const CommSample& s : samples) {
    ops.insert(s.op);
    ranks.insert(s.ranks);
    least = std::min(least, s.bytes);
    most = std::max(most, s.bytes);
  }
  std::vector<std::string> numbers;
  for (const int32_t n : ranks) {
    numbers.push_back(std::to_string(n));
  }
  return fmt::format("{} of {} ranks, {} from {} to {}", join({ops.begin(), ops.end()}, " and "),
                     join(numbers, ", "), counted(static_cast<int64_t>(samples.size()), "time"),
                     human_bytes(least), human_bytes(most));
}

/// Returns whether enough samples are so short that a protocol for short messages would show.
bool has_short_samples(const std::vector<CommSample>& samples) {
  return std::count_if(samples.begin(), samples.end(), [](const CommSample& sample) {
           return sample.bytes < kMinJudgedBytes;
         }) >= kMinSamples;
}

/// Returns the curve of a network's trees, beside that of its rings.
Curve tree_beside(const Curve& ring) {
  Curve tree = ring;
  tree.bandwidth.value *= kTreeShare;
  tree.bandwidth.source +=
      "; trees reach 0.92 of it: NCCL's own tuning model, src/graph/tuning.cc (2.10 to 2.27)";
  return tree;
}

/// Sets the latency of a network whose groups are of one shape, which tells only the sum of a start
/// and of latencies. The base's start leaves one latency of the times, and the base has another
/// one: their geometric mean is taken, since neither is better known.
void set_latency_between(const Cluster& base, const std::vector<CommSample>& samples,
                         Cluster* cluster) {
  Cluster with_starts = *cluster;
  with_starts.links.intra.start = base.links.intra.start;
  with_starts.links.intra.short_messages.start = base.links.intra.short_messages.start;
  CurveFit fit(with_starts, true, true, samples);
  fit.run();
  const auto set = [](Seconds* latency, double other_s) {
    if (!(latency->value > 0 && other_s > 0)) return;
    latency->source = fmt::format(
        "geometric mean of {:.3g} us, which the base's start leaves of the "
        "times, and of {:.3g} us ({})",
        other_s * 1e6, latency->value * 1e6, latency->source);
    latency->value = std::sqrt(latency->value * other_s);
  };
  set(&cluster->links.inter.latency, fit.curve(false, "").latency.value);
  if (fit.has_short()) {
    set(&cluster->links.inter.short_messages.latency, fit.curve(true, "").latency.value);
  }
}

bool of_one_shape(const std::vector<CommSample>& samples) {
  return std::all_of(samples.begin(), samples.end(), [&](const CommSample& s) {
    return s.ranks == samples[0].ranks && s.nodes == samples[0].nodes;
  });
}

/// Fits one class of links; returns whether any sample used it. `given_start` as in CurveFit.
bool fit_class(bool inter, const std::vector<CommSample>& samples, const std::string& where,
               bool given_start, const Cluster& base, Cluster* cluster) {
  std::map<Family, std::vector<CommSample>> families;
  for (const CommSample& s : samples) {
    if ((s.nodes > 1) == inter) {
      families[family_of(s)].push_back(s);
    }
  }
  Link& link = inter ? cluster->links.inter : cluster->links.intra;
  // Rings come first; the other families refine them. Without rings, the class takes the first
  // family.
  bool first = true;
  for (const auto& [family, of] : families) {
    if (std::ssize(of) < kMinSamples) continue;
    if (inter && !given_start && first && family == Family::ring && of_one_shape(of)) {
      set_latency_between(base, of, cluster);
    }
    CurveFit fit(*cluster, inter, given_start, of);
    fit.run();
    const std::string source = fmt::format("fitted to {}: {}", where, described(of));
    const Curve found = fit.curve(false, source);
    if (!found.given()) continue;
    if (first) {
      const Curve of_short = fit.curve(true, source);
      const Curve short_before = link.short_messages;
      link = {};
      link.latency = found.latency;
      link.bandwidth = found.bandwidth;
      link.start = found.start;
      link.half_size = found.half_size;
      if (inter && family == Family::ring) {
        link.tree = tree_beside(found);
      }
      if (fit.has_short()) {
        link.short_messages = of_short;
      } else if (!has_short_samples(of)) {
        link.short_messages = short_before;
      }
    } else {
      (family == Family::direct ? link.direct : link.message) = found;
    }
    first = false;
  }
  return !first;
}

/// Returns whether starts inside nodes hold for transfers over nodes. A process that drives several
/// devices launches them one after another, and the start of its groups has these launches in it.
/// Where groups inside nodes were timed so and groups over nodes were not, the starts differ.
bool network_has_starts_of_nodes(const std::vector<CommSample>& samples) {
  int32_t inside = 0, beyond = 0;
  for (const CommSample& s : samples) {
    int32_t& most = s.nodes > 1 ? beyond : inside;
    most = std::max(most, s.per_process);
  }
  return !(inside > 1 && beyond == 1);
}

/// Returns the times of every even group as the cluster stores them: at most kMaxSizes sizes, each
/// the median of its neighbours.
std::vector<MeasuredTimes> measured_of(const std::vector<CommSample>& samples,
                                       const std::string& where) {
  constexpr size_t kMaxSizes = 128;
  std::map<std::tuple<std::string, int32_t, int32_t>, std::map<double, std::vector<double>>> groups;
  for (const CommSample& s : samples) {
    if (s.ranks == s.nodes * s.per_node) {
      groups[{s.op, s.ranks, s.nodes}][s.bytes].push_back(s.seconds * 1e6);
    }
  }
  std::vector<MeasuredTimes> list;
  for (const auto& [key, by_size] : groups) {
    MeasuredTimes times{std::get<0>(key), std::get<1>(key), std::get<2>(key), where, {}, {}};
    const double least = by_size.begin()->first, most = by_size.rbegin()->first;
    const double step = by_size.size() <= kMaxSizes
                            ? 0
                            : std::log(most / least) / static_cast<double>(kMaxSizes - 1);
    std::vector<double> sizes, us;
    const auto put = [&] {
      times.bytes.push_back(median(sizes));
      times.us.push_back(median(us));
      sizes.clear();
      us.clear();
    };
    for (const auto& [bytes, of_size] : by_size) {
      if (!sizes.empty() && std::log(bytes / sizes.front()) >= step) {
        put();
      }
      sizes.push_back(bytes);
      us.push_back(median(of_size));
    }
    put();
    list.push_back(times);
  }
  return list;
}

/// Warns if a class of links contradicts its own times, since its predictions for unmeasured groups
/// are then worthless.
void warn_if_contradicted(bool inter, const std::vector<CommSample>& samples, LinkFit* fit) {
  constexpr double kDoubtfulError = 0.10;
  Cluster links = fit->cluster;
  links.measured.clear();
  std::vector<double> errors;
  for (const CommSample& sample : samples) {
    if ((sample.nodes > 1) == inter && sample.bytes >= kMinJudgedBytes) {
      errors.push_back(std::abs(predicted_s(links, sample) / sample.seconds - 1));
    }
  }
  const double error = errors.empty() ? 0 : median(errors);
  if (error > kDoubtfulError) {
    fit->doubts.push_back(fmt::format(
        "links.{} is {:.0f} % off (median) the times of at least {} that it was fitted to: groups "
        "of other sizes may be as far off, or more",
        inter ? "inter" : "intra", 100 * error, human_bytes(kMinJudgedBytes)));
  }
}

}  // namespace

double predicted_s(const Cluster& cluster, const CommSample& sample) {
  const GroupShape shape = shape_of(cluster, sample);
  const MeasuredTimes* measured = cluster.measured_on(sample.op, shape);
  if (measured) return measured->seconds(sample.bytes);
  return algorithm_times(cluster, algorithms_of(sample), shape).front().seconds();
}

LinkFit fit_links(const Cluster& base, const std::vector<CommSample>& samples,
                  const std::string& where) {
  // Links inside nodes are fitted first, so that the share of groups over nodes inside them is
  // known.
  LinkFit fit;
  fit.cluster = base;
  std::vector<CommSample> of_groups = samples;
  std::erase_if(of_groups, [](const CommSample& s) { return s.ranks < 2; });
  if (of_groups.empty()) {
    fail(where, "all times are of one rank; expected a log of several ranks");
  }
  if (of_groups.size() < samples.size()) {
    fit.left_out.push_back(
        fmt::format("{} of one rank, which uses no link",
                    counted(static_cast<int64_t>(samples.size() - of_groups.size()), "time")));
  }
  fit.cluster.measured = measured_of(of_groups, where);
  int64_t launches = 0;
  const std::vector<CommSample> kept = without_launches(of_groups, &launches);
  fit.times = static_cast<int64_t>(kept.size());
  if (launches > 0) {
    fit.left_out.push_back(fmt::format(
        "{} within 15 % of the shortest time of a process that drives several devices: they are "
        "the time of its launches",
        counted(launches, "time")));
  }
  if (fit_class(false, kept, where, false, base, &fit.cluster)) {
    fit.fitted.push_back("links.intra");
    warn_if_contradicted(false, kept, &fit);
  }
  if (fit_class(true, kept, where, network_has_starts_of_nodes(kept), base, &fit.cluster)) {
    fit.fitted.push_back("links.inter");
    warn_if_contradicted(true, kept, &fit);
  } else {
    // The kernel's start is the same; the base gives what a network adds.
    Link& far = fit.cluster.links.inter;
    const Link& near = fit.cluster.links.intra;
    if (far.start.value <= 0) {
      far.start = near.start;
    }
    if (far.short_messages.given() && far.short_messages.start.value <= 0) {
      far.short_messages.start = near.short_messages.start;
    }
  }
  return fit;
}

}  // namespace hocket::cost
