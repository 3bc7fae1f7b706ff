#include "tests/simulation/coverage.h"

#include <fmt/format.h>

#include <bitset>

#include "tests/simulation/fields.h"
#include "tutti/base/error.h"

namespace tutti::simulation {

namespace {

template <class Counts>
void add_all(Counts& to, const Counts& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

}  // namespace

void Coverage::add(const Case& from, const Record& record) {
  ++cases;
  const FaultKinds& has_fault = record.faults;
  for (size_t i = 0; i < sights.size(); ++i) sights[i] += record.sights[i];
  std::bitset<kActionKinds> has_action;
  std::bitset<kCollectiveKindCount> has_kind;
  for (const auto& scripts : from.ranks)
    for (const auto& script : scripts)
      for (const auto& action : script) {
        has_action.set(static_cast<size_t>(action.kind));
        for (const auto& operation : action.operations)
          has_kind.set(static_cast<size_t>(operation.kind));
      }
  for (size_t i = 0; i < faults.size(); ++i) faults[i] += has_fault[i];
  for (size_t i = 0; i < actions.size(); ++i) actions[i] += has_action[i];
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] += has_kind[i];
  for (const auto& operation : record.operations)
    ++operations_by_error.at(static_cast<size_t>(operation.error_code));
  std::bitset<49> has_edge;
  std::bitset<13> has_message;
  for (const auto& rank : record.ranks) {
    for (const auto& change : rank.phases)
      has_edge.set(static_cast<size_t>(change.from * 7 + change.to));
    for (size_t i = 0; i < messages.size(); ++i)
      if (rank.messages[i] > 0) has_message.set(i);
  }
  for (size_t i = 0; i < phase_edges.size(); ++i) phase_edges[i] += has_edge[i];
  for (size_t i = 0; i < messages.size(); ++i) messages[i] += has_message[i];
}

void Coverage::add(const Coverage& other) {
  cases += other.cases;
  add_all(faults, other.faults);
  add_all(actions, other.actions);
  add_all(kinds, other.kinds);
  add_all(operations_by_error, other.operations_by_error);
  add_all(phase_edges, other.phase_edges);
  add_all(messages, other.messages);
  add_all(sights, other.sights);
  add_all(looks, other.looks);
}

std::string Coverage::to_text() const {
  std::string text = fmt::format("{} cases; how many of them had\n", cases);
  const auto add_line = [&](std::string_view title, const auto& counts, auto&& name_of) {
    text += fmt::format("  {}:", title);
    for (size_t i = 0; i < counts.size(); ++i)
      if (const std::string name = name_of(i); !name.empty())
        text += fmt::format(" {} {},", name, counts[i]);
    text.back() = '\n';
  };
  add_line("faults", faults, [](size_t i) { return std::string(kFaultNames[i]); });
  add_line("actions", actions, [](size_t i) { return std::string(kActionNames[i]); });
  add_line("kinds", kinds,
           [](size_t i) { return std::string(tutti::to_string(static_cast<CollectiveKind>(i))); });
  constexpr std::array<const char*, 7> kPhases = {"forming", "running", "departing", "inquiring",
                                                  "closing", "broken",  "over"};
  add_line("phases", phase_edges, [&](size_t i) {
    return phase_edges[i] == 0 ? std::string()
                               : fmt::format("{}-{}", kPhases[i / 7], kPhases[i % 7]);
  });
  add_line("messages", messages, [&](size_t i) { return std::string(kMessageNames[i]); });
  if (sights[static_cast<size_t>(Sight::start)] > 0)
    add_line("in shared memory", sights, [&](size_t i) { return std::string(kSightNames[i]); });
  text += "and how many operations ended with\n";
  add_line("errors", operations_by_error, [](size_t i) {
    return i == 0 ? std::string("none") : std::string(tutti::to_string(static_cast<ErrorCode>(i)));
  });
  text += "and what the invariants looked at\n";
  add_line("looks", looks, [](size_t i) { return i == 0 ? std::string() : fmt::format("I{}", i); });
  return text;
}

}  // namespace tutti::simulation
