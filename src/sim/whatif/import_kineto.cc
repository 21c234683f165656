// SPDX-License-Identifier: Apache-2.0
// PyTorch profiles (Kineto), a file per rank: kernels and copies in streams, and the host, which
// launches them and waits for them. Clocks of ranks are set by when collectives end, and where a
// record of one is lost, by that it is told which collectives of ranks are one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/stats.h"
#include "base/text.h"
#include "sim/whatif/importers.h"
#include "trace/chrome_events.h"

namespace hocket::sim::whatif {
namespace {

constexpr int32_t kCallStream = -1;
constexpr double kClock = 2e-6;     // seconds by which a stream's and a rank's times may differ
constexpr double kApart = 1e-3;     // seconds between ends of a collective that are told
constexpr double kTogether = 2e-5;  // seconds between ends that agree
constexpr size_t kListed = 8;       // ranks and steps that are named one by one

/// A call of the host that launches or waits, or an activity of the device.
struct Activity {
  double start = 0, end = 0;
  std::string name;
  int64_t correlation = kNone;
  int64_t thread = 0;  ///< of the host
  int32_t stream = kCallStream;
  int32_t step = kNone;      ///< in which the host called or launched it
  int32_t launches = kNone;  ///< of a call: index of what it launches
  int32_t number = kNone;    ///< of a collective: the how many-th of its name in the step
  int64_t bytes = 0;         ///< of a collective; 0: not said
};

/// What a host call means to the device.
enum class Call { launches, waits_for_device, makes_streams_wait, other };
Call call_of(std::string_view name) {
  if (name.find("StreamWaitEvent") != name.npos) return Call::makes_streams_wait;
  if (name.find("DeviceSynchronize") != name.npos || name.find("StreamSynchronize") != name.npos) {
    return Call::waits_for_device;
  }
  const bool launches = name.find("Launch") != name.npos || name.find("Memcpy") != name.npos ||
                        name.find("Memset") != name.npos;
  return launches ? Call::launches : Call::other;
}

/// "ncclKernel_AllReduce_RING_LL_Sum_float" of the same with its arguments and templates.
std::string short_name(const std::string& name) {
  std::string_view view = name;
  if (view.starts_with("void ")) {
    view.remove_prefix(5);
  }
  return std::string(view.substr(0, std::min(view.find_first_of("(<"), view.size())));
}

bool is_collective(std::string_view name) {
  return name.starts_with("nccl") || name.find("ncclKernel") != name.npos ||
         name.find("ncclDevKernel") != name.npos;
}

/// True of collectives that add up, as gradients are.
bool is_sum(std::string_view name) {
  return is_collective(name) &&
         (name.find("AllReduce") != name.npos || name.find("ReduceScatter") != name.npos);
}

/// Bytes of an element, by PyTorch's names of types: those of NCCL's records ("BFloat16") and those
/// of inputs of ops ("c10::BFloat16", "long int"); 0: not known.
int64_t bytes_of_type(std::string_view type) {
  constexpr std::pair<std::string_view, int64_t> kTypes[] = {
      {"float", 4},         {"Float", 4}, {"double", 8},    {"Double", 8}, {"c10::BFloat16", 2},
      {"BFloat16", 2},      {"Half", 2},  {"c10::Half", 2}, {"int", 4},    {"Int", 4},
      {"long int", 8},      {"Long", 8},  {"char", 1},      {"Char", 1},   {"signed char", 1},
      {"unsigned char", 1}, {"Byte", 1},  {"bool", 1},      {"Bool", 1}};
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const auto& row) { return row.first == type; });
  return found == std::end(kTypes) ? 0 : found->second;
}

/// Elements of a tensor by its dims, or of a list of tensors by theirs.
double elements_of(trace::JsonStream& json) {
  double sum = 0, product = 1;
  bool is_list = false;
  if (json.next() != '[') {
    json.skip_value();
    return 0;
  }
  json.array([&] {
    if (json.next() == '[') {
      is_list = true;
      sum += elements_of(json);
      return;
    }
    double dim = 0;
    json.number(&dim);
    product *= dim;
  });
  return is_list ? sum : product;
}

/// What an event says beside its name and time that is of interest here.
struct Arguments {
  static constexpr std::array<std::string_view, 6> kNames = {
      "correlation", "stream", "In msg nelems", "dtype", "Input Dims", "Input type"};
  enum Number { correlation, stream, message_elements, message_type, input_dims, input_types };

  std::vector<double> elements;    ///< of the message, or of each input
  std::vector<std::string> types;  ///< likewise

  /// Reads the value of one of kNames. False: it is not of the type that it should be, and unread.
  bool read(int number, trace::JsonStream& json, Activity* activity) {
    switch (static_cast<Number>(number)) {
      case correlation:
        activity->correlation = json.integer();
        return true;
      case stream:
        activity->stream = json.small();
        return true;
      case message_elements:
        elements.assign(1, 0);
        json.number(&elements[0]);
        return true;
      case message_type:
        if (json.next() != '"') return false;
        types.assign(1, json.string());
        return true;
      case input_dims:
        if (json.next() != '[') return false;
        json.array([&] { elements.push_back(elements_of(json)); });
        return true;
      case input_types:
        if (json.next() != '[') return false;
        json.array([&] { read_input_type(json); });
        return true;
    }
    return false;
  }

  /// Bytes of all of them; 0: not known.
  int64_t bytes() const {
    double sum = 0;
    for (size_t i = 0; i < std::min(elements.size(), types.size()); ++i) {
      sum += elements[i] * static_cast<double>(bytes_of_type(types[i]));
    }
    return sum > 0 && sum < 1e15 ? static_cast<int64_t>(sum) : 0;
  }

 private:
  void read_input_type(trace::JsonStream& json) {
    types.emplace_back();
    if (json.next() == '"') {
      json.string(&types.back());
    } else {
      json.skip_value();
    }
  }
};

/// An op of a rank, by what assemble() tells ops apart by, and when it ended.
struct Place {
  int32_t name = kNone, sequence = kNone;
  double end = 0;
};

struct RankTrace {
  std::string path;
  std::string unusable;  ///< why; empty: it is used
  int32_t rank = kNone, world_size = 0;
  std::vector<Activity> host, device;
  std::vector<Activity>
      marks;  ///< of the host, "nccl:all_reduce": what it launches a collective in
  std::vector<std::array<double, 2>> step_times;  ///< of ProfilerStep#N
  std::vector<int32_t> step_numbers;
  std::map<int32_t, int64_t> calls_of_step;  ///< by its number
  int64_t outside = 0;                       ///< calls in no step
  int64_t unrecorded = 0;                    ///< launches of what is not in the profile
  int64_t orphans = 0;                       ///< kernels whose launch is not, or in no step
};

class KinetoReader {
 public:
  explicit KinetoReader(const std::vector<std::string>& paths) : paths_(paths) {
    run_.source = "kineto";
    run_.waits_from = "of streams and of the host's calls";
  }

  MeasuredRun read() {
    // Files; which ranks and steps are used; one clock; which collectives are one; ops with what
    // they wait for within a rank; who meets.
    for (const std::string& path : paths_) {
      ranks_.push_back(read_rank(path));
    }
    number_ranks();
    choose_steps();
    leave_out();
    align_clocks();
    number_collectives();
    for (const RankTrace& rank : ranks_) {
      for (size_t i = 0; i < rank.step_times.size(); ++i) {
        const auto [at, added] =
            first_start_.try_emplace(rank.step_numbers[i], rank.step_times[i][0]);
        at->second = std::min(at->second, rank.step_times[i][0]);
      }
    }
    std::vector<Observed> seen;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      observe(static_cast<int32_t>(i), &seen);
    }
    run_.pattern_workers = static_cast<int32_t>(ranks_.size());
    for (size_t i = 0; i < ranks_.size(); ++i) {
      run_.workers.push_back(
          {ranks_[i].rank, 0, static_cast<int32_t>(i), fmt::format("rank {}", ranks_[i].rank)});
    }
    assemble(std::move(seen), ranks_[0].path, &run_);
    kinds();
    waits();
    collectives();
    if (const int64_t broken = settle_transfers(&run_); broken > 0) {
      note(0, fmt::format("the time of {} that ended more than 10 ms before all had started: "
                          "clocks apart; taken as 0",
                          counted(broken, "transfer")));
    }
    return std::move(run_);
  }

 private:
  void note(int64_t events, std::string text) {
    run_.dropped.events += events;
    run_.dropped.notes.push_back(std::move(text));
  }

  /// A rank's profile; of one that cannot be used what is known, and why.
  RankTrace read_rank(const std::string& path) {
    RankTrace rank;
    rank.path = path;
    trace::ChromeDamage damage;
    try {
      damage = read_events(&rank);
    } catch (const Error& error) {
      if (is_directory(path) || !file_exists(path)) throw;
      rank.unusable = error.text();
      return rank;
    }
    if (rank.device.empty()) {
      rank.unusable = "got no kernel; expected a profile of a rank with a GPU";
    } else {
      give_steps(&rank);
      if (rank.calls_of_step.empty()) {
        rank.unusable = "got no call that launches a kernel in a step; expected the host's calls";
      }
    }
    if (damage.partial && !rank.unusable.empty()) {
      rank.unusable += fmt::format(" ({})", damage.cause);
    } else if (damage.partial) {
      note(0, fmt::format("the rest of {}: {}", path, damage.cause));
    }
    return rank;
  }

  trace::ChromeDamage read_events(RankTrace* out) {
    RankTrace& rank = *out;
    Activity at;
    trace::ChromeDamage damage;
    int64_t without = 0;
    Arguments arguments;
    trace::for_each_event(
        rank.path, Arguments::kNames,
        [&] {
          at = {};
          arguments = {};
        },
        [&](int argument, trace::JsonStream& json) { return arguments.read(argument, json, &at); },
        [&](const trace::ChromeEvent& event) {
          if (event.phase != 'X') return;
          const std::string& category = event.category;
          const bool device = category == "kernel" || category == "Kernel" ||
                              category.starts_with("gpu_mem") || category == "Memcpy" ||
                              category == "Memset";
          const bool host =
              category == "cuda_runtime" || category == "Runtime" || category == "cuda_driver";
          const bool step =
              event.name.starts_with("ProfilerStep#") && category != "gpu_user_annotation";
          const bool mark = category == "user_annotation" && event.name.starts_with("nccl:");
          if (!device && !host && !step && !mark) return;
          if (!event.has_start || !event.has_duration || event.duration_us < 0) {
            ++without;
            return;
          }
          at.start = event.start_us * 1e-6;
          at.end = at.start + event.duration_us * 1e-6;
          if (step) {
            int64_t number = 0;
            parse_int(std::string_view(event.name).substr(13), &number);
            rank.step_times.push_back({at.start, at.end});
            rank.step_numbers.push_back(static_cast<int32_t>(number));
          } else if (mark) {
            at.thread = event.tid;
            at.bytes = arguments.bytes();
            rank.marks.push_back(at);
          } else if (device) {
            at.name = short_name(event.name);
            at.bytes = is_collective(at.name) ? arguments.bytes() : 0;
            at.stream = at.stream < 0 ? static_cast<int32_t>(event.tid) : at.stream;
            rank.device.push_back(at);
          } else if (call_of(event.name) != Call::other) {
            at.name = event.name;
            at.thread = event.tid;
            at.stream = kCallStream;
            rank.host.push_back(at);
          }
        },
        [&](std::string_view key, trace::JsonStream& json) {
          if (key != "distributedInfo" || json.next() != '{') return false;
          json.object([&](std::string_view fact) {
            if (fact == "rank") {
              rank.rank = json.small();
            } else if (fact == "world_size") {
              rank.world_size = json.small();
            } else {
              json.skip_value();
            }
          });
          return true;
        },
        &damage);
    if (without > 0) {
      note(without, fmt::format("{} of {} without a time, or with one below 0",
                                counted(without, "event"), rank.path));
    }
    const auto by_start = [](const Activity& a, const Activity& b) { return a.start < b.start; };
    std::stable_sort(rank.host.begin(), rank.host.end(), by_start);
    std::stable_sort(rank.device.begin(), rank.device.end(), by_start);
    std::stable_sort(rank.marks.begin(), rank.marks.end(), by_start);
    return damage;
  }

  /// In which steps the host calls, and what it launches in them.
  static void give_steps(RankTrace* rank) {
    std::map<int64_t, int32_t> activity_of;  // by correlation
    for (size_t i = 0; i < rank->device.size(); ++i) {
      activity_of[rank->device[i].correlation] = static_cast<int32_t>(i);
    }
    rank->orphans = static_cast<int64_t>(rank->device.size());
    for (Activity& call : rank->host) {
      call.step = step_at(*rank, call.start);
      if (call.step == kNone) {
        ++rank->outside;
        continue;
      }
      ++rank->calls_of_step[call.step];
      if (call_of(call.name) != Call::launches) continue;
      const auto made = activity_of.find(call.correlation);
      if (made == activity_of.end()) {
        ++rank->unrecorded;
        continue;
      }
      Activity& activity = rank->device[static_cast<size_t>(made->second)];
      if (activity.step != kNone) continue;  // an earlier call's
      --rank->orphans;
      call.launches = made->second;
      activity.step = call.step;
    }
  }

  static int32_t step_at(const RankTrace& rank, double time) {
    if (rank.step_times.empty()) return 0;
    for (size_t i = 0; i < rank.step_times.size(); ++i) {
      if (time >= rank.step_times[i][0] && time < rank.step_times[i][1])
        return rank.step_numbers[i];
    }
    return kNone;
  }

  /// Bytes of the mark that a call lies in.
  static int64_t marked_bytes(const RankTrace& rank, const Activity& call) {
    int64_t bytes = 0;
    for (auto mark = rank.marks.begin();
         mark != rank.marks.end() && mark->start <= call.start + kClock; ++mark) {
      if (mark->thread == call.thread && call.start <= mark->end) {
        bytes = mark->bytes;
      }
    }
    return bytes;
  }

  /// Ranks without a number get the free ones, in the order of the files.
  void number_ranks() {
    std::set<int32_t> taken;
    for (const RankTrace& rank : ranks_) {
      if (rank.rank >= 0 && !taken.insert(rank.rank).second) {
        fail(rank.path, "is of rank {}, as another file is; expected a file per rank", rank.rank);
      }
    }
    int32_t free = 0;
    for (RankTrace& rank : ranks_) {
      while (rank.rank < 0 && taken.count(free)) {
        ++free;
      }
      if (rank.rank < 0) {
        rank.rank = free;
        taken.insert(free);
      }
    }
    std::stable_sort(ranks_.begin(), ranks_.end(),
                     [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  }

  /// Steps are compared between ranks, so those are used that the same ranks have, as many ranks as
  /// can be; fewer of them only if these have more than twice as many steps in common. Ranks that
  /// do not have these steps are left out, and steps that one of those ranks lacks are not used.
  void choose_steps() {
    std::map<int32_t, std::vector<int32_t>> who;  // by step: ranks that have it, by their place
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!ranks_[i].unusable.empty()) continue;
      for (const auto& [step, calls] : ranks_[i].calls_of_step) {
        who[step].push_back(static_cast<int32_t>(i));
      }
    }
    std::vector<std::vector<int32_t>> sets;
    for (const auto& [step, ranks] : who) {
      if (std::find(sets.begin(), sets.end(), ranks) == sets.end()) {
        sets.push_back(ranks);
      }
    }
    std::stable_sort(sets.begin(), sets.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
    std::vector<int32_t> chosen;
    for (const std::vector<int32_t>& ranks : sets) {
      std::set<int32_t> steps;
      for (const auto& [step, others] : who) {
        if (std::includes(others.begin(), others.end(), ranks.begin(), ranks.end())) {
          steps.insert(step);
        }
      }
      if (steps.size() > 2 * steps_.size()) {
        steps_ = steps;
        chosen = ranks;
      }
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      RankTrace& rank = ranks_[i];
      if (!rank.unusable.empty() ||
          std::binary_search(chosen.begin(), chosen.end(), static_cast<int32_t>(i))) {
        continue;
      }
      const auto lacking = std::find_if(steps_.begin(), steps_.end(), [&](int32_t step) {
        return rank.calls_of_step.count(step) == 0;
      });
      rank.unusable =
          rank.step_times.empty()
              ? fmt::format(
                    "got no ProfilerStep; expected them as of the {} other ranks that are used",
                    chosen.size())
              : fmt::format(
                    "got no step {}; expected the steps of the {} other ranks that are used",
                    *lacking, chosen.size());
    }
    size_t unused = 0;
    for (const auto& [step, ranks] : who) {
      int64_t calls = 0;
      size_t have = 0;
      for (const int32_t rank : ranks) {
        if (!std::binary_search(chosen.begin(), chosen.end(), rank)) continue;
        ++have;
        calls += ranks_[static_cast<size_t>(rank)].calls_of_step[step];
      }
      if (have == 0 || steps_.count(step)) continue;
      ++run_.dropped.steps;
      run_.dropped.events += calls;
      if (++unused <= kListed) {
        run_.dropped.notes.push_back(fmt::format("step {} is not used: of {} ranks {} lack it",
                                                 step, chosen.size(), chosen.size() - have));
      }
    }
    if (unused > kListed) {
      run_.dropped.notes.push_back(
          fmt::format("{} more are not used either", counted(int64_t(unused - kListed), "step")));
    }
  }

  /// Only ranks that can be used stay. Error: none can.
  void leave_out() {
    int64_t world = 0;
    for (const RankTrace& rank : ranks_) {
      world = std::max<int64_t>({world, rank.world_size, int64_t{rank.rank} + 1});
    }
    const RankTrace first = ranks_.front();
    std::erase_if(ranks_, [&](const RankTrace& rank) {
      if (rank.unusable.empty()) return false;
      note(0, fmt::format("{} is left out: {}", rank.path, rank.unusable));
      return true;
    });
    if (ranks_.empty()) fail(first.path, "{}", first.unusable);
    const auto missing = static_cast<size_t>(world) - ranks_.size();
    if (missing == 0) return;
    std::vector<std::string> which;
    size_t at = 0;
    for (int32_t number = 0; number < world && which.size() < std::min(missing, kListed);
         ++number) {
      if (at < ranks_.size() && ranks_[at].rank == number) {
        ++at;
      } else {
        which.push_back(fmt::format("{}", number));
      }
    }
    if (missing > kListed) {
      which.push_back(fmt::format("{} more", missing - kListed));
    }
    note(0, fmt::format("ranks missing of 0 to {}: {}; collectives do not wait for them", world - 1,
                        join(which, ", ")));
  }

  /// Ends of a rank's collectives, by step and name, in their order.
  using Ends = std::map<std::pair<int32_t, std::string>, std::vector<double>>;
  static Ends collective_ends(const RankTrace& rank) {
    Ends ends;
    for (const Activity& activity : rank.device) {
      if (is_collective(activity.name)) {
        ends[{activity.step, activity.name}].push_back(activity.end);
      }
    }
    for (auto& [key, list] : ends) {
      std::sort(list.begin(), list.end());
    }
    return ends;
  }

  /// How much later a rank's clock is than the first one's, and how far ends are from each other
  /// once it is set (median).
  struct ClockOffset {
    double seconds = 0, apart = 0;
    bool most_agree = false;
  };

  /// The members of a collective end it together: the median of the differences between the ends of
  /// the k-th ones. Where records are lost, these need not be the same: then the difference that
  /// most ends agree on.
  static std::optional<ClockOffset> clock_offset(const Ends& first, const Ends& other) {
    std::vector<double> differences;
    for (const auto& [key, ends] : other) {
      const auto same = first.find(key);
      if (same == first.end() || same->second.size() != ends.size()) continue;
      for (size_t k = 0; k < ends.size(); ++k) {
        differences.push_back(ends[k] - same->second[k]);
      }
    }
    if (differences.empty()) return agreed_offset(first, other);
    ClockOffset found{median(differences)};
    for (double& difference : differences) {
      difference = std::fabs(difference - found.seconds);
    }
    found.apart = median(differences);
    if (found.apart <= kTogether) return found;
    const std::optional<ClockOffset> agreed = agreed_offset(first, other);
    return agreed->most_agree ? agreed : found;
  }

  /// Of all differences between an end on one rank and what may be the same on the other, the one
  /// that most have, of equally many the one nearest 0.
  static std::optional<ClockOffset> agreed_offset(const Ends& first, const Ends& other) {
    // The k-th of the rank that has fewer is one of those of the other from the k-th on, unless
    // that rank lacks one, too.
    constexpr size_t kSampled = 1000;
    std::vector<double> differences;
    size_t compared = 0;
    const auto each_common = [&](auto&& f) {
      for (const auto& [key, ends] : other) {
        const auto same = first.find(key);
        if (same == first.end()) continue;
        const bool fewer = ends.size() < same->second.size();
        fewer ? f(ends, same->second, -1.0) : f(same->second, ends, 1.0);
      }
    };
    each_common([&](const std::vector<double>& few, const std::vector<double>& many, double sign) {
      const size_t more = many.size() - few.size();
      for (size_t k = 0; k < few.size(); k += few.size() / kSampled + 1) {
        ++compared;
        for (size_t i = k > 0 ? k - 1 : 0; i < std::min(k + more + 2, many.size()); ++i) {
          differences.push_back(sign * (many[i] - few[k]));
        }
      }
    });
    if (differences.empty()) return std::nullopt;
    std::sort(differences.begin(), differences.end());
    size_t most = 0, best = 0, last = 0;
    for (size_t i = 0; i < differences.size(); ++i) {
      while (last < differences.size() && differences[last] <= differences[i] + kTogether) {
        ++last;
      }
      const bool nearer = std::fabs(differences[i]) < std::fabs(differences[best]);
      if (last - i > most || (last - i == most && nearer)) {
        most = last - i;
        best = i;
      }
    }
    const auto begin = differences.begin() + static_cast<int64_t>(best);
    ClockOffset found{median({begin, begin + static_cast<int64_t>(most)})};
    found.most_agree = 2 * most > compared;
    std::vector<double> apart;
    each_common([&](const std::vector<double>& few, const std::vector<double>& many, double sign) {
      for (const double end : few) {
        const double due = end + sign * found.seconds;
        apart.push_back(std::fabs(many[nearest(many, due)] - due));
      }
    });
    found.apart = median(apart);
    return found;
  }

  /// Index of the value nearest to `value` in an ascending list that is not empty.
  static size_t nearest(const std::vector<double>& list, double value) {
    const auto above = std::lower_bound(list.begin(), list.end(), value);
    if (above == list.end()) return list.size() - 1;
    const bool below = above != list.begin() && value - *(above - 1) <= *above - value;
    return static_cast<size_t>(above - list.begin()) - (below ? 1 : 0);
  }

  /// All ranks by the first one's clock; one that has no collective in common with it begins its
  /// steps when that does.
  void align_clocks() {
    const Ends first = collective_ends(ranks_[0]);
    double most = 0;
    for (size_t i = 1; i < ranks_.size(); ++i) {
      const std::optional<ClockOffset> offset = clock_offset(first, collective_ends(ranks_[i]));
      if (!offset) {
        note(0, fmt::format("the clock of rank {} is set by its steps, as if it began them with "
                            "rank {}: they have no collective in common",
                            ranks_[i].rank, ranks_[0].rank));
        set_back(begin_of_steps(ranks_[i]) - begin_of_steps(ranks_[0]), &ranks_[i]);
        continue;
      }
      most = std::max(most, std::fabs(offset->seconds));
      apart_ = std::max(apart_, offset->apart);
      set_back(offset->seconds, &ranks_[i]);
    }
    if (apart_ > kApart) {
      note(0,
           fmt::format("clocks apart: collectives end up to {} (median of a rank) from each other "
                       "after clocks were set; waiting times are that uncertain",
                       human_time(apart_)));
    } else if (most > kClock) {
      note(0,
           fmt::format("no event, but clocks of ranks differed by up to {}; they were set by when "
                       "collectives ended, to {}",
                       human_time(most), human_time(apart_)));
    }
  }

  /// When the first step that is used begins: its mark, or without marks the host's first call.
  double begin_of_steps(const RankTrace& rank) const {
    for (size_t i = 0; i < rank.step_times.size(); ++i) {
      if (rank.step_numbers[i] == *steps_.begin()) return rank.step_times[i][0];
    }
    return rank.host.front().start;
  }

  static void set_back(double seconds, RankTrace* rank) {
    for (auto* list : {&rank->host, &rank->device, &rank->marks}) {
      for (Activity& activity : *list) {
        activity.start -= seconds;
        activity.end -= seconds;
      }
    }
    for (auto& [start, end] : rank->step_times) {
      start -= seconds;
      end -= seconds;
    }
  }

  /// Collectives of a name and step, by rank.
  using ByRank = std::vector<std::vector<Activity*>>;

  /// What is one collective has one number on all ranks. That is the k-th of its name, unless a
  /// rank lacks a record: then it is told by when they end.
  void number_collectives() {
    std::map<std::pair<int32_t, std::string>, ByRank> all;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      for (const Activity& call : ranks_[i].host) {
        if (call.launches == kNone) continue;
        Activity& activity = ranks_[i].device[static_cast<size_t>(call.launches)];
        if (!is_collective(activity.name)) continue;
        ByRank& by_rank = all[{activity.step, activity.name}];
        by_rank.resize(ranks_.size());
        by_rank[i].push_back(&activity);
      }
    }
    for (auto& [key, by_rank] : all) {
      std::erase_if(by_rank, [](const auto& list) { return list.empty(); });
      if (!number_by_order(by_rank)) {
        number_by_time(&by_rank);
      }
    }
  }

  /// How far from each other the members of a collective may end.
  double end_tolerance() const { return kTogether + 10 * apart_; }

  /// False: these cannot be the same, since ranks have more or fewer, or one rank ended before
  /// another one began.
  bool number_by_order(const ByRank& by_rank) const {
    const size_t count = by_rank[0].size();
    for (const std::vector<Activity*>& list : by_rank) {
      if (list.size() != count) return false;
    }
    for (size_t k = 0; k < count; ++k) {
      double last_start = -1e300, first_end = 1e300;
      for (const std::vector<Activity*>& list : by_rank) {
        last_start = std::max(last_start, list[k]->start);
        first_end = std::min(first_end, list[k]->end);
      }
      if (apart_ <= kApart && last_start > first_end + end_tolerance()) return false;
    }
    for (const std::vector<Activity*>& list : by_rank) {
      for (size_t k = 0; k < count; ++k) {
        list[k]->number = static_cast<int32_t>(k);
      }
    }
    return true;
  }

  /// Two are one if their ends are near, and of all of both ranks the nearest to each other.
  void number_by_time(ByRank* by_rank) const {
    struct Met {
      double end = 0;  // of the first of them
      std::vector<Activity*> members;
    };
    std::vector<Met> met;
    for (std::vector<Activity*>& list : *by_rank) {
      std::stable_sort(list.begin(), list.end(),
                       [](const Activity* a, const Activity* b) { return a->end < b->end; });
      std::vector<double> ends, met_ends;
      for (const Activity* activity : list) {
        ends.push_back(activity->end);
      }
      for (const Met& one : met) {
        met_ends.push_back(one.end);
      }
      for (size_t i = 0; i < list.size(); ++i) {
        const size_t at = met_ends.empty() ? 0 : nearest(met_ends, ends[i]);
        if (!met_ends.empty() && nearest(ends, met_ends[at]) == i &&
            std::fabs(met_ends[at] - ends[i]) <= end_tolerance()) {
          met[at].members.push_back(list[i]);
        } else {
          met.push_back({ends[i], {list[i]}});
        }
      }
      std::stable_sort(met.begin(), met.end(),
                       [](const Met& a, const Met& b) { return a.end < b.end; });
    }
    for (size_t number = 0; number < met.size(); ++number) {
      for (Activity* activity : met[number].members) {
        activity->number = static_cast<int32_t>(number);
      }
    }
  }

  int32_t name_id(const std::string& name) {
    const auto [at, added] = names_.try_emplace(name, static_cast<int32_t>(run_.names.size()));
    if (added) {
      run_.names.push_back(name);
    }
    return at->second;
  }

  /// The host's calls, each with the time since the one that it waits for: the last one of any
  /// thread that had ended when it began, since threads hand over to each other (PyTorch's backward
  /// pass has its own), and the one before in its thread. Calls of two threads at once do not wait
  /// for each other. Then what they launch, and which stream's last op each op waits for where the
  /// host made streams wait.
  void observe(int32_t worker, std::vector<Observed>* seen) {
    const RankTrace& rank = ranks_[static_cast<size_t>(worker)];
    std::map<std::tuple<int32_t, int32_t>, int32_t> count;  // step, name
    std::map<int32_t, Place> last_on;                       // by stream
    std::map<int32_t, bool> may_meet;                       // by stream: a wait since its last op
    int32_t last_step = kNone - 1;
    Place host_before{};                // of the calls that have ended the one that did last
    std::vector<Place> running;         // calls that have not
    std::map<int64_t, Place> last_by;   // by thread: its last call
    std::map<int64_t, size_t> threads;  // in the order of their first calls
    for (const Activity& call : rank.host) {
      const int32_t step = call.step;
      if (!steps_.count(step)) continue;
      if (step != last_step) {
        last_on.clear();
        may_meet.clear();
        host_before = {};
        running.clear();
        last_by.clear();
        last_step = step;
        // What the host does before its first call, and how much later than others it begins.
        if (const auto first = first_start_.find(step); first != first_start_.end()) {
          Observed begins = observed(worker, step, "host start", kCallStream, &count);
          begins.start = first->second;
          begins.duration = std::max(call.start - first->second, 0.0);
          host_before = {begins.name, begins.sequence, call.start};
          seen->push_back(begins);
        }
      }
      const Call meaning = call_of(call.name);
      if (meaning == Call::makes_streams_wait) {
        for (auto& [stream, meets] : may_meet) {
          meets = true;
        }
        continue;
      }
      const size_t thread = threads.try_emplace(call.thread, threads.size()).first->second;
      Observed op = observed(
          worker, step,
          thread == 0 ? "host " + call.name : fmt::format("host {} ({})", call.name, thread),
          kCallStream - static_cast<int32_t>(thread), &count);
      std::erase_if(running, [&](const Place& other) {
        if (other.end > call.start + kClock) return false;
        if (host_before.name == kNone || other.end >= host_before.end) {
          host_before = other;
        }
        return true;
      });
      std::vector<Place> waits;
      if (host_before.name != kNone) {
        waits.push_back(host_before);
      }
      const auto own = last_by.find(call.thread);
      if (own != last_by.end() && own->second.end <= call.start + kClock) {
        waits.push_back(own->second);
      }
      double begin = waits.empty() ? call.start : std::min(waits.front().end, call.end);
      if (meaning == Call::waits_for_device) {
        for (const auto& [stream, last] : last_on) {
          if (last.end <= call.end + kClock) {
            begin = std::max(begin, std::min(last.end, call.end));
            waits.push_back(last);
          }
        }
      }
      op.start = begin;
      op.duration = std::max(call.end - begin, 0.0);
      const Place launch{op.name, op.sequence, call.end};
      running.push_back(launch);
      last_by[call.thread] = launch;
      wait_[{worker, op.name, op.sequence}] = waits;
      seen->push_back(op);
      if (call.launches == kNone) continue;
      const Activity& activity = rank.device[static_cast<size_t>(call.launches)];
      Observed kernel = observed(worker, step, activity.name, activity.stream, &count);
      if (activity.number != kNone) {
        kernel.sequence = activity.number;
      }
      kernel.start = activity.start;
      kernel.duration = activity.end - activity.start;
      if (is_collective(activity.name)) {
        sent_[{worker, kernel.name, kernel.sequence}] = {
            activity.bytes > 0 ? activity.bytes : marked_bytes(rank, call),
            thread > 0 && is_sum(activity.name)};
      }
      std::vector<Place> before = {launch};
      for (const auto& [stream, last] : last_on) {
        if (stream == activity.stream ||
            (may_meet[stream] && last.end <= activity.start + kClock)) {
          before.push_back(last);
        }
      }
      wait_[{worker, kernel.name, kernel.sequence}] = before;
      last_on[activity.stream] = {kernel.name, kernel.sequence, activity.end};
      may_meet[activity.stream] = false;
      seen->push_back(kernel);
    }
    if (rank.orphans > 0) {
      note(rank.orphans,
           fmt::format("{} of rank {} whose launch is not in the profile or in no step",
                       counted(rank.orphans, "kernel"), rank.rank));
    }
    if (rank.unrecorded > 0) {
      note(0, fmt::format("what {} of rank {} launched: no record in the profile",
                          counted(rank.unrecorded, "call"), rank.rank));
    }
    if (rank.outside > 0) {
      note(rank.outside, fmt::format("{} of rank {} outside of the profiler's steps",
                                     counted(rank.outside, "call"), rank.rank));
    }
  }

  Observed observed(int32_t worker, int32_t step, const std::string& name, int32_t stream,
                    std::map<std::tuple<int32_t, int32_t>, int32_t>* count) {
    Observed op;
    op.worker = worker;
    op.step = step;
    op.name = name_id(name);
    op.stream = stream;
    op.sequence = (*count)[{step, op.name}]++;
    return op;
  }

  /// The k-th op of a name is of one kind on all ranks. Sums that another thread than the one which
  /// calls first launches are of gradients: PyTorch runs the backward pass in a thread of its own.
  void kinds() {
    std::map<std::pair<int32_t, int32_t>, int32_t> kinds;
    for (Op& op : run_.ops) {
      const std::string& name = run_.names[static_cast<size_t>(op.name)];
      const auto sent = sent_.find({op.worker, op.name, op.sequence});
      const bool is_gradient = sent != sent_.end() && sent->second.of_backward;
      op.bytes = sent == sent_.end() ? 0 : sent->second.bytes;
      const auto [at, added] =
          kinds.try_emplace({op.name, op.sequence}, static_cast<int32_t>(run_.kinds.size()));
      if (added) {
        run_.kinds.push_back(
            {fmt::format("{} {}", name, op.sequence), is_gradient           ? Traffic::gradients
                                                      : is_collective(name) ? Traffic::collective
                                                                            : Traffic::none});
      }
      op.block = static_cast<int32_t>(run_.blocks.size());
      run_.blocks.push_back({at->second, op.worker, kNone, kNone});
    }
  }

  void waits() {
    for (size_t op = 0; op < run_.ops.size(); ++op) {
      const Op& row = run_.ops[op];
      op_of_[{row.worker, row.name, row.sequence}] = static_cast<int32_t>(op);
    }
    for (const auto& [key, before] : wait_) {
      const auto op = op_of_.find(key);
      if (op == op_of_.end()) continue;
      for (const Place& place : before) {
        const auto other = op_of_.find({std::get<0>(key), place.name, place.sequence});
        if (other != op_of_.end()) {
          add_wait(&run_, op->second, other->second);
        }
      }
    }
  }

  /// The collective of a name and number of all ranks that have it.
  void collectives() {
    std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> members;
    for (size_t op = 0; op < run_.ops.size(); ++op) {
      if (run_.kind(static_cast<int32_t>(op)).communicates()) {
        members[{run_.ops[op].name, run_.ops[op].sequence}].push_back(static_cast<int32_t>(op));
      }
    }
    int64_t lacking = 0;
    std::string example;
    for (auto& [key, ops] : members) {
      lacking += ops.size() < ranks_.size();
      if (ops.size() < ranks_.size() && example.empty()) {
        example = lack(ops);
      }
      for (const int32_t op : ops) {
        run_.ops[static_cast<size_t>(op)].group = static_cast<int32_t>(run_.groups.size());
      }
      run_.groups.push_back({ops, false, false});
    }
    if (lacking > 0) {
      run_.dropped.notes.push_back(
          fmt::format("the other members of {}: not all ranks have them (one is {}); they wait for "
                      "those that do",
                      counted(lacking, "collective"), example));
    }
  }

  /// "ncclKernel_AllReduce 3 of rank 5", the first rank that is not among these.
  std::string lack(const std::vector<int32_t>& members) const {
    const Op& any = run_.ops[static_cast<size_t>(members[0])];
    std::set<int32_t> have;
    for (const int32_t op : members) {
      have.insert(run_.ops[static_cast<size_t>(op)].worker);
    }
    int32_t worker = 0;
    while (have.count(worker)) {
      ++worker;
    }
    return fmt::format("{} {} of rank {}", run_.names[static_cast<size_t>(any.name)], any.sequence,
                       ranks_[static_cast<size_t>(worker)].rank);
  }

  const std::vector<std::string>& paths_;
  MeasuredRun run_;
  std::vector<RankTrace> ranks_;
  std::set<int32_t> steps_;                ///< that are used, by number
  double apart_ = 0;                       ///< seconds: the greatest of ClockOffset
  std::map<int32_t, double> first_start_;  ///< by step: of the rank that begins it first
  std::map<std::string, int32_t> names_;
  /// By worker, name and sequence, of the last step seen: all steps are held to be alike.
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::vector<Place>> wait_;
  struct Sent {
    int64_t bytes = 0;
    bool of_backward = false;  ///< a sum that a thread of the backward pass launched
  };
  std::map<std::tuple<int32_t, int32_t, int32_t>, Sent> sent_;  ///< by worker, name and sequence
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> op_of_;
};

}  // namespace

MeasuredRun read_kineto(const std::vector<std::string>& paths, const cost::Cluster* /*cluster*/) {
  return KinetoReader(paths).read();
}

bool is_kineto(const std::string& beginning) {
  return beginning.find("\"schemaVersion\"") != beginning.npos ||
         beginning.find("\"deviceProperties\"") != beginning.npos;
}

}  // namespace hocket::sim::whatif
