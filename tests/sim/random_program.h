// SPDX-License-Identifier: Apache-2.0
// Random programs for the simulator's property tests.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/sim_util.h"

namespace hocket::sim {

/// Returns a random program that cannot deadlock: messages and collectives are drawn in one global
/// order, and every lane of every class issues its part in that order.
inline Program random_program(uint32_t seed, int scale = 1, int most_dp = 4) {
  std::mt19937 rng(seed);
  const auto below = [&](int n) { return int(rng() % uint32_t(n)); };
  const int pp = 1 + below(4), dp = 1 + below(most_dp), ep = 1 + below(2);
  Maker m({{"pp", pp}, {"dp", dp}, {"ep", ep}});
  std::vector<int> count(size_t(pp), 0);
  const auto deps = [&](int c) {
    std::vector<TaskId> d;
    for (int k = below(3); k > 0 && count[size_t(c)] > 0; --k) {
      d.push_back(below(count[size_t(c)]));
    }
    return d;
  };
  const int steps = 20 + below(60);
  for (int s = 0; s < steps; ++s) {
    const int c = below(pp);
    switch (below(6)) {
      case 0:
      case 1: {
        m.work(c, "w", below(50) * scale, deps(c), below(4) ? Lane::compute : Lane::h2d);
        ++count[size_t(c)];
        break;
      }
      case 2: {
        if (pp == 1) break;
        const int off = 1 + below(pp - 1), d = (c + off) % pp, tag = below(2);
        m.send(c, d - c, tag, below(30) * scale, deps(c));
        ++count[size_t(c)];
        m.recv(d, c - d, tag, deps(d));
        ++count[size_t(d)];
        break;
      }
      case 3: {
        const int which = below(3);
        std::vector<std::string> axes;
        if (which != 1) {
          axes.push_back("dp");
        }
        if (which != 0) {
          axes.push_back("ep");
        }
        m.collective(c, axes, below(40) * scale, deps(c), "all_reduce", {},
                     below(2) ? Lane::intra : Lane::inter);
        ++count[size_t(c)];
        break;
      }
      case 4: {
        std::vector<int32_t> members;
        for (int k = 0; k < pp; ++k) {
          if (k == c || below(2)) {
            members.push_back(k);
          }
        }
        const int64_t ns = below(40) * scale;
        for (int32_t k : members) {
          m.collective(k, {"pp"}, ns, deps(k), "all_gather", members, Lane::inter);
          ++count[size_t(k)];
        }
        break;
      }
      case 5: {
        std::vector<int32_t> to;
        for (int rank = 0; rank < dp; ++rank) {
          to.push_back(rank);
        }
        std::shuffle(to.begin(), to.end(), rng);
        m.exchange(c, to, below(2), below(30) * scale, deps(c));
        count[size_t(c)] += 2;
        break;
      }
    }
  }
  return m.p;
}

}  // namespace hocket::sim
