// SPDX-License-Identifier: Apache-2.0
#include "engine/programs.h"

#include <utility>

#include "engine/emulate.h"
#include "engine/params.h"
#include "program/buffer_contents.h"

namespace hocket::engine {

Programs::Entry& Programs::entry(const ProgramSpec& spec) {
  Entry& entry = entries_[spec.key];
  if (!entry.compiled) {
    auto compiled = std::make_shared<const Compiled>(compile(spec));
    if (inspect_) {
      inspect_(*compiled);
    }
    entry.compiled = std::move(compiled);
  }
  return entry;
}

const Compiled& Programs::compiled(const ProgramSpec& spec) { return *entry(spec).compiled; }

Session& Programs::session(const ProgramSpec& spec) {
  Entry& found = entry(spec);
  if (!found.session) {
    // Training is emulated; its evaluation runs at its own speed.
    const bool trains = spec.lowering.purpose.empty();
    found.session = std::make_unique<Session>(
        found.compiled, store_, trains ? emulate(run_, found.compiled->program) : nullptr);
  }
  return *found.session;
}

void Programs::replace(const ProgramSpec& spec, Compiled given) {
  entries_[spec.key] = {std::make_shared<const Compiled>(std::move(given)), nullptr};
}

void Programs::end_sessions() {
  for (auto& [key, entry] : entries_) {
    entry.session.reset();
  }
}

ParameterReader::ParameterReader(Programs& programs, const ProgramSpec& reads,
                                 const Compiled* trained)
    : programs_(programs), trained_(trained) {
  const std::shared_ptr<const Compiled> compiled = programs.entry(reads).compiled;
  if (trained == nullptr || program::held_otherwise(trained->program, compiled->program).empty()) {
    shared_ = &programs.session(reads);
  } else {
    own_ = std::make_unique<Session>(compiled, runtime::Store(programs.ranks()));
  }
}

void ParameterReader::update() {
  if (!own_) return;
  copy_parameters(own_->graph(), trained_->program, programs_.store(), own_->program(),
                  own_->store());
}

}  // namespace hocket::engine
