// SPDX-License-Identifier: Apache-2.0
#include "sim/whatif/importers.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "trace/json_stream.h"

namespace hocket::sim::whatif {
namespace {

constexpr size_t kBeginning = size_t{1} << 16;

std::string beginning_of(const std::string& path) {
  trace::TextSource source(path);
  std::string text;
  while (text.size() < kBeginning && source.peek() >= 0) {
    const std::string_view view = source.view();
    text.append(view);
    source.skip(view.size());
  }
  return text;
}

}  // namespace

const std::vector<Importer>& importers() {
  static const std::vector<Importer> list = {
      {"straggler", "Chrome JSON of StragglerAnalysis (Megatron's ops by type)", false, false,
       is_straggler, read_straggler},
      {"hocket", "the trace of a run or of a simulation of ours", false, false, is_hocket,
       read_hocket},
      {"kineto", "PyTorch profiles", true, false, is_kineto, read_kineto},
      {"chakra", "Chakra execution traces, .et or JSON", true, true, is_chakra, read_chakra},
  };
  return list;
}

MeasuredRun read_run(const std::vector<std::string>& paths, const std::string& format,
                     const cost::Cluster* cluster) {
  // By name, or by the first file whose beginning is known: one of several may be damaged.
  std::vector<std::string> names;
  const Importer* chosen = nullptr;
  for (const Importer& importer : importers()) {
    names.push_back(importer.name);
    if (format == importer.name) {
      chosen = &importer;
    }
  }
  for (size_t i = 0; format.empty() && chosen == nullptr && i < paths.size(); ++i) {
    const std::string beginning = beginning_of(paths[i]);
    const auto found =
        std::find_if(importers().begin(), importers().end(),
                     [&](const Importer& importer) { return importer.knows(beginning); });
    chosen = found == importers().end() ? nullptr : &*found;
  }
  if (chosen == nullptr && !format.empty()) {
    fail("hocket whatif --format", "got {}; expected one of {}", quote(format), join(names, ", "));
  }
  if (chosen == nullptr) {
    fail(paths[0],
         "is in no format that is known; expected one of {}; try --format if its "
         "beginning does not show which",
         join(names, ", "));
  }
  if (paths.size() > 1 && !chosen->several) {
    fail("hocket whatif", "got {} files of format {}; expected one, which holds all ranks",
         paths.size(), chosen->name);
  }
  if (cluster != nullptr && !chosen->priced) {
    fail("hocket whatif --cluster",
         "a trace of format {} has its durations; expected it with a "
         "Chakra trace only",
         chosen->name);
  }
  return chosen->read(paths, cluster);
}

}  // namespace hocket::sim::whatif
