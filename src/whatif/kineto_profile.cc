// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "trace/chrome_events.h"

namespace hocket::whatif::kineto {
namespace {

/// "ncclKernel_AllReduce_RING_LL_Sum_float" of the same with its arguments and templates.
std::string short_name(const std::string& name) {
  std::string_view view = name;
  if (view.starts_with("void ")) {
    view.remove_prefix(5);
  }
  return std::string(view.substr(0, std::min(view.find_first_of("(<"), view.size())));
}

/// Returns the bytes of an element, by PyTorch's names of types: those of NCCL's records
/// ("BFloat16") and those of inputs of ops ("c10::BFloat16", "long int"); 0: not known.
int64_t bytes_of_type(std::string_view type) {
  constexpr std::string_view kOne[] = {"char", "Char", "signed char", "unsigned char",
                                       "Byte", "bool", "Bool"};
  constexpr std::string_view kTwo[] = {"c10::BFloat16", "BFloat16",  "c10::Half",
                                       "Half",          "short int", "short unsigned int",
                                       "Short",         "UInt16"};
  constexpr std::string_view kFour[] = {"float", "Float", "int", "Int", "unsigned int", "UInt32"};
  constexpr std::string_view kEight[] = {"double",
                                         "Double",
                                         "long int",
                                         "Long",
                                         "long unsigned int",
                                         "UInt64",
                                         "c10::complex<float>",
                                         "ComplexFloat"};
  const auto is_of = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), type) != std::end(names);
  };
  // Float8_e4m3fn, Float8_e5m2 and others.
  if (type.starts_with("Float8_") || type.starts_with("c10::Float8_")) return 1;
  if (is_of(kOne)) return 1;
  if (is_of(kTwo)) return 2;
  if (is_of(kFour)) return 4;
  return is_of(kEight) ? 8 : 0;
}

/// Reads the elements of a tensor by its dims, or of a list of tensors by theirs.
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

/// Arguments of an event that matter here, beside its name and time.
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

  /// Returns the bytes of all of them; 0 if they are not known.
  int64_t bytes() const {
    double sum = 0;
    for (size_t i = 0; i < std::min(elements.size(), types.size()); ++i) {
      sum += elements[i] * bytes_of_type(types[i]);
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

/// Kind of an event.
enum class Record { kernel, call, step, mark, other };
Record record_of(const trace::ChromeEvent& event) {
  const std::string& category = event.category;
  if (event.phase != 'X') return Record::other;
  if (event.name.starts_with("ProfilerStep#") && category != "gpu_user_annotation") {
    return Record::step;
  }
  if (category == "user_annotation" && event.name.starts_with("nccl:")) return Record::mark;
  if (category == "kernel" || category == "Kernel" || category.starts_with("gpu_mem") ||
      category == "Memcpy" || category == "Memset") {
    return Record::kernel;
  }
  const bool host =
      category == "cuda_runtime" || category == "Runtime" || category == "cuda_driver";
  return host ? Record::call : Record::other;
}

/// Reads the events of a file into a profile.
class ProfileReader {
 public:
  explicit ProfileReader(Profile* profile) : profile_(*profile) {}

  trace::ChromeDamage read(Dropped* dropped) {
    trace::ChromeDamage damage;
    trace::for_each_event(
        profile_.path, Arguments::kNames,
        [&] {
          at_ = {};
          arguments_ = {};
        },
        [&](int argument, trace::JsonStream& json) {
          return arguments_.read(argument, json, &at_);
        },
        [&](const trace::ChromeEvent& event) { add(event); },
        [&](std::string_view key, trace::JsonStream& json) { return is_facts(key, json); },
        &damage);
    if (profile_.without_time > 0) {
      note(profile_.without_time,
           fmt::format("{} of {} without a time, or with one below 0",
                       counted(profile_.without_time, "event"), profile_.path),
           dropped);
    }
    const auto by_start = [](const Activity& a, const Activity& b) { return a.start < b.start; };
    for (auto* list : {&profile_.host, &profile_.device, &profile_.marks}) {
      std::stable_sort(list->begin(), list->end(), by_start);
    }
    return damage;
  }

 private:
  void add(const trace::ChromeEvent& event) {
    const Record record = record_of(event);
    if (record == Record::other) return;
    if (!event.has_start || !event.has_duration || event.duration_us < 0) {
      ++profile_.without_time;
      return;
    }
    at_.start = event.start_us * 1e-6;
    at_.end = at_.start + event.duration_us * 1e-6;
    if (record == Record::step) {
      int64_t number = 0;
      parse_int(std::string_view(event.name).substr(13), &number);
      profile_.steps.push_back({number, at_.start, at_.end});
    } else if (record == Record::mark) {
      at_.thread = event.tid;
      at_.bytes = arguments_.bytes();
      profile_.marks.push_back(at_);
    } else if (record == Record::kernel) {
      at_.name = short_name(event.name);
      at_.bytes = is_collective(at_.name) ? arguments_.bytes() : 0;
      at_.stream = at_.stream < 0 ? event.tid : at_.stream;
      profile_.device.push_back(at_);
    } else if (call_of(event.name) != Call::other) {
      at_.name = event.name;
      at_.thread = event.tid;
      at_.stream = kCallStream;
      profile_.host.push_back(at_);
    }
  }

  /// Reads the profile's rank, and the number of ranks.
  bool is_facts(std::string_view key, trace::JsonStream& json) {
    if (key != "distributedInfo" || json.next() != '{') return false;
    json.object([&](std::string_view fact) {
      if (fact == "rank") {
        profile_.rank = json.small();
      } else if (fact == "world_size") {
        profile_.world_size = json.small();
      } else {
        json.skip_value();
      }
    });
    return true;
  }

  Profile& profile_;
  Activity at_;  ///< the event being read
  Arguments arguments_;
};

/// Returns the step that a time lies in; of two that meet there the later one, whatever is lost in
/// adding a duration to a start.
int64_t step_at(const Profile& profile, double time) {
  if (profile.steps.empty()) return 0;
  const Step* last = nullptr;
  for (const Step& step : profile.steps) {
    if (time >= step.start && time < step.end && (last == nullptr || step.start > last->start)) {
      last = &step;
    }
  }
  return last == nullptr ? kNone : last->number;
}

/// Returns the first activity of each correlation id, and links it to the others: a graph's kernels
/// share the id of its launch.
std::map<int64_t, ActivityIndex> first_of_launches(Profile* profile) {
  std::map<int64_t, ActivityIndex> first, last;
  for (ActivityIndex i = 0; i < profile->device.size(); ++i) {
    const int64_t correlation = profile->device[i].correlation;
    if (correlation != kNone && !first.try_emplace(correlation, i).second) {
      profile->device[last.at(correlation)].next = i;
    }
    last[correlation] = i;
  }
  return first;
}

/// Marks activities without a launch that their stream ran before any that was launched in the
/// profile: streams keep the order of launches.
void mark_earlier(Profile* profile) {
  std::set<int32_t> reached;  // streams
  std::set<int64_t> called;
  for (const Activity& call : profile->host) {
    called.insert(call.correlation);
  }
  for (Activity& activity : profile->device) {
    if (activity.step != kNone) {
      reached.insert(activity.stream);
    } else if (!reached.count(activity.stream) && !called.count(activity.correlation)) {
      activity.earlier = true;
    }
  }
}

/// Assigns steps to host calls, and to the activities that they launch.
void give_steps(Profile* profile) {
  std::map<int64_t, ActivityIndex> activity_of = first_of_launches(profile);
  profile->orphans = profile->device.size();
  for (Activity& call : profile->host) {
    call.step = step_at(*profile, call.start);
    if (call.step == kNone) {
      ++profile->outside;
      continue;
    }
    ++profile->calls_of_step[call.step];
    if (call_of(call.name) != Call::launches) continue;
    const auto made = activity_of.find(call.correlation);
    if (made == activity_of.end()) {
      ++profile->unrecorded;
      continue;
    }
    if (profile->device[made->second].step != kNone) continue;  // an earlier call's
    call.launches = made->second;
    for (ActivityIndex at = call.launches; at != kNone; at = profile->device[at].next) {
      profile->device[at].step = call.step;
      --profile->orphans;
    }
  }
  mark_earlier(profile);
  profile->orphans_within =
      std::count_if(profile->device.begin(), profile->device.end(), [&](const Activity& activity) {
        return activity.step == kNone && !activity.earlier &&
               step_at(*profile, activity.start) != kNone;
      });
}

/// Returns the reason that a profile cannot be used; empty if it can.
std::string fault_of(const Profile& profile) {
  if (profile.device.empty()) return "got no kernel; expected a profile of a rank with a GPU";
  if (profile.orphans < std::ssize(profile.device)) return "";
  return "got no call that launches a kernel in a step; expected the host's calls";
}

}  // namespace

Call call_of(std::string_view name) {
  if (name.find("StreamWaitEvent") != name.npos) return Call::makes_streams_wait;
  if (name.find("EventSynchronize") != name.npos) return Call::waits_for_event;
  if (name.find("DeviceSynchronize") != name.npos || name.find("StreamSynchronize") != name.npos) {
    return Call::waits_for_device;
  }
  const bool launches = name.find("Launch") != name.npos || name.find("Memcpy") != name.npos ||
                        name.find("Memset") != name.npos;
  return launches ? Call::launches : Call::other;
}

bool is_collective(std::string_view name) {
  return name.starts_with("nccl") || name.find("ncclKernel") != name.npos ||
         name.find("ncclDevKernel") != name.npos;
}

bool is_sum(std::string_view name) {
  return is_collective(name) &&
         (name.find("AllReduce") != name.npos || name.find("ReduceScatter") != name.npos);
}

Profile read_profile(const std::string& path, Dropped* dropped) {
  Profile profile;
  profile.path = path;
  trace::ChromeDamage damage;
  try {
    damage = ProfileReader(&profile).read(dropped);
  } catch (const Error& error) {
    if (is_directory(path) || !file_exists(path)) throw;
    profile.unusable = error.text();
    return profile;
  }
  give_steps(&profile);
  profile.unusable = fault_of(profile);
  if (damage.partial && !profile.unusable.empty()) {
    profile.unusable += fmt::format(" ({})", damage.cause);
  } else if (damage.partial) {
    note(0, fmt::format("the rest of {}: {}", path, damage.cause), dropped);
  }
  return profile;
}

int64_t marked_bytes(const Profile& profile, const Activity& call) {
  int64_t bytes = 0;
  for (auto mark = profile.marks.begin();
       mark != profile.marks.end() && mark->start <= call.start + kClockError; ++mark) {
    if (mark->thread == call.thread && call.start <= mark->end) {
      bytes = mark->bytes;
    }
  }
  return bytes;
}

}  // namespace hocket::whatif::kineto
