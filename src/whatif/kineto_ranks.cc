// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace hocket::whatif::kineto {
namespace {

/// Gives ranks without a number the free ones, in the order of the files.
void number_ranks(std::vector<Profile>* profiles) {
  std::set<int32_t> taken;
  for (const Profile& profile : *profiles) {
    if (profile.rank >= 0 && !taken.insert(profile.rank).second) {
      fail(profile.path, "is of rank {}, as another file is; expected a file per rank",
           profile.rank);
    }
  }
  int32_t free = 0;
  for (Profile& profile : *profiles) {
    while (profile.rank < 0 && taken.count(free)) {
      ++free;
    }
    if (profile.rank < 0) {
      profile.rank = free;
      taken.insert(free);
    }
  }
  std::stable_sort(profiles->begin(), profiles->end(),
                   [](const Profile& a, const Profile& b) { return a.rank < b.rank; });
}

using ProfileIndices = std::vector<size_t>;  ///< ascending

/// Chooses ranks and steps. Steps are compared between ranks, so all used ranks have all used
/// steps. Prefers more ranks; takes fewer only for more than twice the common steps. Leaves out the
/// other ranks, and steps that a used rank lacks.
class RankSelection {
 public:
  RankSelection(std::vector<Profile>* profiles, Dropped* dropped)
      : profiles_(*profiles), dropped_(*dropped) {}

  std::set<int64_t> choose() {
    for (size_t i = 0; i < profiles_.size(); ++i) {
      if (!profiles_[i].unusable.empty()) continue;
      for (const auto& [step, calls] : profiles_[i].calls_of_step) {
        ranks_of_step_[step].push_back(i);
      }
    }
    for (const ProfileIndices& ranks : alternatives()) {
      const std::set<int64_t> common = steps_of(ranks);
      if (common.size() > 2 * steps_.size()) {
        steps_ = common;
        ranks_ = ranks;
      }
    }
    leave_others_out();
    report_steps();
    return steps_;
  }

 private:
  /// Returns the ranks that have a step, for every step; the most first.
  std::vector<ProfileIndices> alternatives() const {
    std::vector<ProfileIndices> sets;
    for (const auto& [step, ranks] : ranks_of_step_) {
      if (std::find(sets.begin(), sets.end(), ranks) == sets.end()) {
        sets.push_back(ranks);
      }
    }
    std::stable_sort(
        sets.begin(), sets.end(),
        [](const ProfileIndices& a, const ProfileIndices& b) { return a.size() > b.size(); });
    return sets;
  }

  /// Returns the steps common to all of `ranks`.
  std::set<int64_t> steps_of(const ProfileIndices& ranks) const {
    std::set<int64_t> steps;
    for (const auto& [step, have] : ranks_of_step_) {
      if (std::includes(have.begin(), have.end(), ranks.begin(), ranks.end())) {
        steps.insert(step);
      }
    }
    return steps;
  }

  bool is_chosen(size_t rank) const {
    return std::binary_search(ranks_.begin(), ranks_.end(), rank);
  }

  void leave_others_out() {
    for (size_t i = 0; i < profiles_.size(); ++i) {
      Profile& profile = profiles_[i];
      if (!profile.unusable.empty() || is_chosen(i)) continue;
      const auto lacking = std::find_if(steps_.begin(), steps_.end(), [&](int64_t step) {
        return profile.calls_of_step.count(step) == 0;
      });
      profile.unusable =
          profile.steps.empty()
              ? fmt::format("got no ProfilerStep; expected them as of the {} that are used",
                            counted(std::ssize(ranks_), "other rank"))
              : fmt::format("got no step {}; expected the steps of the {} that are used", *lacking,
                            counted(std::ssize(ranks_), "other rank"));
    }
  }

  void report_steps() {
    if (!ranks_.empty() && std::all_of(ranks_.begin(), ranks_.end(), [&](size_t rank) {
          return profiles_[rank].steps.empty();
        })) {
      dropped_.notes.push_back(
          "no event, but no profile has ProfilerStep marks: each is taken as one step, "
          "with the time before and behind the steps");
    }
    size_t unused = 0;
    for (const auto& [step, have] : ranks_of_step_) {
      int64_t calls = 0, lack = std::ssize(ranks_);
      for (const size_t rank : have) {
        if (!is_chosen(rank)) continue;
        --lack;
        calls += profiles_[rank].calls_of_step[step];
      }
      if (steps_.count(step) || lack == std::ssize(ranks_)) continue;
      ++dropped_.steps;
      dropped_.events += calls;
      if (++unused <= kListed) {
        dropped_.notes.push_back(
            fmt::format("step {} is not used: of {} ranks {} lack it", step, ranks_.size(), lack));
      }
    }
    if (unused > kListed) {
      dropped_.notes.push_back(
          fmt::format("{} more are not used either", counted(unused - kListed, "step")));
    }
  }

  std::vector<Profile>& profiles_;
  Dropped& dropped_;
  std::map<int64_t, ProfileIndices> ranks_of_step_;  ///< by step: the ranks that have it
  std::set<int64_t> steps_;                          ///< chosen
  ProfileIndices ranks_;                             ///< chosen
};

/// Removes profiles that cannot be used. Throws Error if none can.
void leave_out(std::vector<Profile>* profiles, Dropped* dropped) {
  const Profile first = profiles->front();
  std::erase_if(*profiles, [&](const Profile& profile) {
    if (profile.unusable.empty()) return false;
    note(0, fmt::format("{} is left out: {}", profile.path, profile.unusable), dropped);
    return true;
  });
  if (profiles->empty()) fail(first.path, "{}", first.unusable);
}

void report_missing(int64_t world, const std::vector<Profile>& profiles, Dropped* dropped) {
  const size_t missing = world - profiles.size();
  if (missing == 0) return;
  std::vector<std::string> which;
  size_t at = 0;
  for (int32_t rank = 0; which.size() < std::min(missing, kListed); ++rank) {
    if (at < profiles.size() && profiles[at].rank == rank) {
      ++at;
    } else {
      which.push_back(fmt::format("{}", rank));
    }
  }
  if (missing > kListed) {
    which.push_back(fmt::format("{} more", missing - kListed));
  }
  note(0,
       fmt::format("ranks missing of 0 to {}: {}; collectives do not wait for them", world - 1,
                   join(which, ", ")),
       dropped);
}

}  // namespace

std::set<int64_t> choose_ranks_and_steps(std::vector<Profile>* profiles, Dropped* dropped) {
  number_ranks(profiles);
  const std::set<int64_t> steps = RankSelection(profiles, dropped).choose();
  int64_t world = 0;
  for (const Profile& profile : *profiles) {
    world = std::max<int64_t>({world, profile.world_size, int64_t{profile.rank} + 1});
  }
  leave_out(profiles, dropped);
  report_missing(world, *profiles, dropped);
  return steps;
}

}  // namespace hocket::whatif::kineto
