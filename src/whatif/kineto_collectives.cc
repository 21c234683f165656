// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/stats.h"
#include "base/text.h"

namespace hocket::whatif::kineto {
namespace {

constexpr double kReportedDistanceSeconds =
    1e-3;                            // seconds between the ends of a collective that are reported
constexpr double kEndsAgree = 2e-5;  // seconds between ends that agree

/// Returns the index of the value nearest to `value` in an ascending list that is not empty.
size_t nearest(const std::vector<double>& list, double value) {
  const auto above = std::lower_bound(list.begin(), list.end(), value);
  if (above == list.end()) return list.size() - 1;
  const bool below = above != list.begin() && value - *(above - 1) <= *above - value;
  return above - list.begin() - (below ? 1 : 0);
}

/// Ends of a rank's collectives, by step and name, in their order.
using Ends = std::map<std::pair<int64_t, std::string>, std::vector<double>>;
Ends collective_ends(const Profile& profile) {
  Ends ends;
  for (const Activity& activity : profile.device) {
    if (is_collective(activity.name)) {
      ends[{activity.step, activity.name}].push_back(activity.end);
    }
  }
  for (auto& [key, list] : ends) {
    std::sort(list.begin(), list.end());
  }
  return ends;
}

/// Ends of the same step and name on two ranks: on the one that has fewer, and on the other.
struct Common {
  const std::vector<double>& few;
  const std::vector<double>& many;
  double sign;  ///< 1 if the first rank has fewer
};
std::vector<Common> in_common(const Ends& first, const Ends& other) {
  std::vector<Common> all;
  for (const auto& [key, ends] : other) {
    const auto same = first.find(key);
    if (same == first.end()) continue;
    if (ends.size() < same->second.size()) {
      all.push_back({ends, same->second, -1});
    } else {
      all.push_back({same->second, ends, 1});
    }
  }
  return all;
}

/// Returns the largest group of values of an ascending list that lie within `width` of each other;
/// among equals the group nearest 0.
std::vector<double> densest(const std::vector<double>& values, double width) {
  size_t most = 0, best = 0, last = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    while (last < values.size() && values[last] <= values[i] + width) {
      ++last;
    }
    const bool nearer = std::fabs(values[i]) < std::fabs(values[best]);
    if (last - i > most || (last - i == most && nearer)) {
      most = last - i;
      best = i;
    }
  }
  const auto begin = values.begin() + best;
  return {begin, begin + most};
}

/// Offset of a rank's clock against the first rank's, and the median distance of ends once it is
/// set.
struct ClockOffset {
  double seconds = 0, apart = 0;
};

/// Returns the offset by pairing the k-th collectives of every name that both ranks have equally
/// often.
std::optional<ClockOffset> offset_by_order(const std::vector<Common>& common) {
  std::vector<double> differences;
  for (const auto& [few, many, sign] : common) {
    for (size_t k = 0; few.size() == many.size() && k < few.size(); ++k) {
      differences.push_back(many[k] - few[k]);
    }
  }
  if (differences.empty()) return std::nullopt;
  ClockOffset found{median(differences), 0};
  for (double& difference : differences) {
    difference = std::fabs(difference - found.seconds);
  }
  found.apart = median(differences);
  return found;
}

/// Returns the most frequent difference between an end on one rank and its candidates on the other.
/// Sets `most_agree` if more than half of the ends agree.
ClockOffset offset_by_agreement(const std::vector<Common>& common, bool* most_agree) {
  // Candidates: the k-th of the rank with fewer is one of the other's from the k-th on, unless that
  // rank lacks records too.
  constexpr size_t kMaxCandidates = 1000;
  std::vector<double> differences;
  size_t compared = 0;
  for (const auto& [few, many, sign] : common) {
    const size_t more = many.size() - few.size();
    for (size_t k = 0; k < few.size(); k += few.size() / kMaxCandidates + 1) {
      ++compared;
      for (size_t i = k > 0 ? k - 1 : 0; i < std::min(k + more + 2, many.size()); ++i) {
        differences.push_back(sign * (many[i] - few[k]));
      }
    }
  }
  std::sort(differences.begin(), differences.end());
  const std::vector<double> agreed = densest(differences, kEndsAgree);
  *most_agree = 2 * agreed.size() > compared;
  ClockOffset found{median(agreed), 0};
  std::vector<double> apart;
  for (const auto& [few, many, sign] : common) {
    for (const double end : few) {
      const double due = end + sign * found.seconds;
      apart.push_back(std::fabs(many[nearest(many, due)] - due));
    }
  }
  found.apart = median(apart);
  return found;
}

/// Offset between the clocks of two ranks: the members of a collective end it together. It is the
/// median of the differences between the ends of the k-th ones. Where records are lost, it is the
/// difference that most ends agree on. None: the ranks have no collective in common.
std::optional<ClockOffset> clock_offset(const std::vector<Common>& common) {
  if (common.empty()) return std::nullopt;
  const std::optional<ClockOffset> by_order = offset_by_order(common);
  if (by_order && by_order->apart <= kEndsAgree) return by_order;
  bool most_agree = false;
  const ClockOffset by_agreement = offset_by_agreement(common, &most_agree);
  return most_agree || !by_order ? by_agreement : by_order;
}

/// Returns the begin of the first used step: its mark, or without marks the host's first call.
double begin_of_steps(const std::set<int64_t>& steps, const Profile& profile) {
  for (const Step& step : profile.steps) {
    if (step.number == *steps.begin()) return step.start;
  }
  return profile.host.front().start;
}

void set_back(double seconds, Profile* profile) {
  for (auto* list : {&profile->host, &profile->device, &profile->marks}) {
    for (Activity& activity : *list) {
      activity.start -= seconds;
      activity.end -= seconds;
    }
  }
  for (Step& step : profile->steps) {
    step.start -= seconds;
    step.end -= seconds;
  }
}

/// Collectives of a name and step, by rank.
using ByRank = std::vector<std::vector<Activity*>>;

/// Returns the collectives of each rank that has any, in launch order.
std::vector<ByRank> collectives_of(std::vector<Profile>* profiles) {
  std::map<std::pair<int64_t, std::string>, ByRank> all;
  for (size_t i = 0; i < profiles->size(); ++i) {
    Profile& profile = (*profiles)[i];
    for (const Activity& call : profile.host) {
      for (ActivityIndex at = call.launches; at != kNone; at = profile.device[at].next) {
        Activity& activity = profile.device[at];
        if (!is_collective(activity.name)) continue;
        ByRank& by_rank = all[{activity.step, activity.name}];
        by_rank.resize(profiles->size());
        by_rank[i].push_back(&activity);
      }
    }
  }
  std::vector<ByRank> list;
  for (auto& [key, by_rank] : all) {
    std::erase_if(by_rank, [](const auto& of_rank) { return of_rank.empty(); });
    list.push_back(std::move(by_rank));
  }
  return list;
}

/// Returns whether pairing by order is possible: all ranks have equally many collectives, and none
/// ends more than `tolerance` before another member begins.
bool can_be_in_order(const ByRank& by_rank, double tolerance) {
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
    if (last_start > first_end + tolerance) return false;
  }
  return true;
}

void number_by_order(const ByRank& by_rank) {
  for (const std::vector<Activity*>& list : by_rank) {
    for (size_t k = 0; k < list.size(); ++k) {
      list[k]->number = k;
    }
  }
}

/// Numbers two as one if their ends are within `tolerance`, and nearest to each other among all of
/// both ranks.
void number_by_time(double tolerance, ByRank* by_rank) {
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
          std::fabs(met_ends[at] - ends[i]) <= tolerance) {
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
      activity->number = number;
    }
  }
}

}  // namespace

double set_clocks(const std::set<int64_t>& steps, std::vector<Profile>* profiles,
                  Dropped* dropped) {
  // Sets every clock to the first rank's, by the ends of shared collectives, else by the steps.
  // Then reports the clocks' distance, and the distance of ends left.
  const Profile& reference = profiles->front();
  const Ends first = collective_ends(reference);
  double most = 0, apart = 0;
  for (size_t i = 1; i < profiles->size(); ++i) {
    Profile& profile = (*profiles)[i];
    const Ends other = collective_ends(profile);
    const std::optional<ClockOffset> offset = clock_offset(in_common(first, other));
    if (!offset) {
      note(0,
           fmt::format("the clock of rank {} is set by its steps, as if it began them with rank "
                       "{}: they have no collective in common",
                       profile.rank, reference.rank),
           dropped);
      set_back(begin_of_steps(steps, profile) - begin_of_steps(steps, reference), &profile);
      continue;
    }
    most = std::max(most, std::fabs(offset->seconds));
    apart = std::max(apart, offset->apart);
    set_back(offset->seconds, &profile);
  }
  if (apart > kReportedDistanceSeconds) {
    note(0,
         fmt::format("clocks apart: collectives end up to {} (median of a rank) from each other "
                     "after clocks were set; waiting times are that uncertain",
                     human_time(apart)),
         dropped);
  } else if (most > kClockError) {
    note(0,
         fmt::format("no event, but clocks of ranks differed by up to {}; they were set by when "
                     "collectives ended, to {}",
                     human_time(most), human_time(apart)),
         dropped);
  }
  return apart;
}

void number_collectives(double apart, std::vector<Profile>* profiles) {
  // Between distant clocks, times are no evidence against the order of records that all ranks have.
  const double tolerance = kEndsAgree + 10 * apart;
  for (ByRank& by_rank : collectives_of(profiles)) {
    if (can_be_in_order(by_rank, apart > kReportedDistanceSeconds ? 1e300 : tolerance)) {
      number_by_order(by_rank);
    } else {
      number_by_time(tolerance, &by_rank);
    }
  }
}

}  // namespace hocket::whatif::kineto
