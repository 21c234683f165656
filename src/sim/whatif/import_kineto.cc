// SPDX-License-Identifier: Apache-2.0
// PyTorch profiles (Kineto), a file per rank: kernels and copies in streams, and the host, which
// launches them and waits for them. Clocks of ranks are set by when collectives end.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/stats.h"
#include "base/text.h"
#include "sim/whatif/importers.h"
#include "sim/whatif/transfers.h"
#include "trace/chrome_events.h"

namespace hocket::sim::whatif {
namespace {

constexpr int32_t kCallStream = -1;
constexpr double kClock = 2e-6;  // seconds by which a stream's and a rank's times may differ
constexpr double kApart = 1e-3;  // seconds between ends of a collective that are told

/// A call of the host that launches or waits, or an activity of the device.
struct Activity {
  double start = 0, end = 0;
  std::string name;
  int64_t correlation = kNone;
  int64_t thread = 0;  ///< of the host
  int32_t stream = kCallStream;
  int32_t step = 0;
  int64_t bytes = 0;  ///< of a collective; 0: not said
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
  int32_t rank = kNone;
  std::vector<Activity> host, device;
  std::vector<Activity>
      marks;  ///< of the host, "nccl:all_reduce": what it launches a collective in
  std::vector<std::array<double, 2>> step_times;  ///< of ProfilerStep#N
  std::vector<int32_t> step_numbers;
};

class KinetoReader {
 public:
  explicit KinetoReader(const std::vector<std::string>& paths) : paths_(paths) {
    run_.source = "kineto";
    run_.waits_from = "of streams and of the host's calls";
  }

  MeasuredRun read() {
    // Files; one clock; ops with what they wait for within a rank; who meets.
    for (const std::string& path : paths_) {
      ranks_.push_back(read_rank(path));
    }
    number_ranks();
    align_clocks();
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
    assemble(std::move(seen), paths_[0], &run_);
    kinds();
    waits();
    collectives();
    settle_transfers(&run_);
    return std::move(run_);
  }

 private:
  void note(int64_t events, std::string text) {
    run_.dropped.events += events;
    run_.dropped.notes.push_back(std::move(text));
  }

  RankTrace read_rank(const std::string& path) {
    RankTrace rank;
    Activity at;
    trace::ChromeDamage damage;
    int64_t without = 0;
    Arguments arguments;
    trace::for_each_event(
        path, Arguments::kNames,
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
          if (!event.has_start || !event.has_duration) {
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
            } else {
              json.skip_value();
            }
          });
          return true;
        },
        &damage);
    if (without > 0) {
      note(without, fmt::format("{} of {} without a time", counted(without, "event"), path));
    }
    if (damage.partial) {
      note(0, fmt::format("the rest of {}: {}", path, damage.cause));
    }
    if (rank.device.empty()) fail(path, "got no kernel; expected a profile of a rank with a GPU");
    const auto by_start = [](const Activity& a, const Activity& b) { return a.start < b.start; };
    std::stable_sort(rank.host.begin(), rank.host.end(), by_start);
    std::stable_sort(rank.device.begin(), rank.device.end(), by_start);
    std::stable_sort(rank.marks.begin(), rank.marks.end(), by_start);
    return rank;
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
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].rank >= 0 && !taken.insert(ranks_[i].rank).second) {
        fail(paths_[i], "is of rank {}, as another file is; expected a file per rank",
             ranks_[i].rank);
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
    std::sort(ranks_.begin(), ranks_.end(),
              [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
    if (ranks_.back().rank + 1 != static_cast<int32_t>(ranks_.size())) {
      note(0, fmt::format("{} of ranks 0 to {} have no file; collectives do not wait for them",
                          ranks_.back().rank + 1 - static_cast<int32_t>(ranks_.size()),
                          ranks_.back().rank));
    }
  }

  /// Ends of a rank's collectives, by name, in their order.
  static std::map<std::string, std::vector<double>> collective_ends(const RankTrace& rank) {
    std::map<std::string, std::vector<double>> ends;
    for (const Activity& activity : rank.device) {
      if (is_collective(activity.name)) {
        ends[activity.name].push_back(activity.end);
      }
    }
    return ends;
  }

  /// The members of a collective end it together: a rank's clock differs from the first one's by
  /// the median of the differences of these ends.
  void align_clocks() {
    const auto first = collective_ends(ranks_[0]);
    double most = 0, apart = 0;
    for (size_t i = 1; i < ranks_.size(); ++i) {
      std::vector<double> differences;
      for (const auto& [name, ends] : collective_ends(ranks_[i])) {
        const auto other = first.find(name);
        if (other == first.end() || other->second.size() != ends.size()) continue;
        for (size_t k = 0; k < ends.size(); ++k) {
          differences.push_back(ends[k] - other->second[k]);
        }
      }
      if (differences.empty()) {
        note(0, fmt::format("the clock of rank {} is not set: it has no collective in common with "
                            "rank {}",
                            ranks_[i].rank, ranks_[0].rank));
        continue;
      }
      const double offset = median(differences);
      most = std::max(most, std::fabs(offset));
      for (double& difference : differences) {
        difference = std::fabs(difference - offset);
      }
      apart = std::max(apart, median(differences));
      for (auto* list : {&ranks_[i].host, &ranks_[i].device, &ranks_[i].marks}) {
        for (Activity& activity : *list) {
          activity.start -= offset;
          activity.end -= offset;
        }
      }
      for (auto& [start, end] : ranks_[i].step_times) {
        start -= offset;
        end -= offset;
      }
    }
    if (apart > kApart) {
      note(0,
           fmt::format("clocks apart: collectives end up to {} (median of a rank) from each other "
                       "after clocks were set; waiting times are that uncertain",
                       human_time(apart)));
    } else if (most > kClock) {
      note(0,
           fmt::format("no event, but clocks of ranks differed by up to {}; they were set by when "
                       "collectives ended, to {}",
                       human_time(most), human_time(apart)));
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
    RankTrace& rank = ranks_[static_cast<size_t>(worker)];
    std::map<int64_t, const Activity*> launched;
    for (const Activity& activity : rank.device) {
      launched[activity.correlation] = &activity;
    }
    std::map<std::tuple<int32_t, int32_t>, int32_t> count;  // step, name
    std::map<int32_t, Place> last_on;                       // by stream
    std::map<int32_t, bool> may_meet;                       // by stream: a wait since its last op
    int32_t last_step = kNone - 1;
    Place host_before{};                // of the calls that have ended the one that did last
    std::vector<Place> running;         // calls that have not
    std::map<int64_t, Place> last_by;   // by thread: its last call
    std::map<int64_t, size_t> threads;  // in the order of their first calls
    int64_t outside = 0, orphans = static_cast<int64_t>(rank.device.size());
    for (const Activity& call : rank.host) {
      const int32_t step = step_at(rank, call.start);
      if (step == kNone) {
        ++outside;
        continue;
      }
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
      const auto made = launched.find(call.correlation);
      if (meaning != Call::launches || made == launched.end()) continue;
      --orphans;
      const Activity& activity = *made->second;
      Observed kernel = observed(worker, step, activity.name, activity.stream, &count);
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
    if (orphans > 0) {
      note(orphans, fmt::format("{} of rank {} whose launch is not in the profile or in no step",
                                counted(orphans, "kernel"), rank.rank));
    }
    if (outside > 0) {
      note(outside, fmt::format("{} of rank {} outside of the profiler's steps",
                                counted(outside, "call"), rank.rank));
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

  /// The k-th collective of a name of all ranks that have it.
  void collectives() {
    std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> members;
    for (size_t op = 0; op < run_.ops.size(); ++op) {
      if (run_.kind(static_cast<int32_t>(op)).communicates()) {
        members[{run_.ops[op].name, run_.ops[op].sequence}].push_back(static_cast<int32_t>(op));
      }
    }
    int64_t lacking = 0;
    for (auto& [key, ops] : members) {
      lacking += ops.size() < ranks_.size();
      for (const int32_t op : ops) {
        run_.ops[static_cast<size_t>(op)].group = static_cast<int32_t>(run_.groups.size());
      }
      run_.groups.push_back({ops, false, false});
    }
    if (lacking > 0) {
      run_.dropped.notes.push_back(
          fmt::format("the other members of {}: not all ranks have them; they wait for those that "
                      "do",
                      counted(lacking, "collective")));
    }
  }

  const std::vector<std::string>& paths_;
  MeasuredRun run_;
  std::vector<RankTrace> ranks_;
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
