#include "tests/simulation/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <type_traits>

#include "tests/simulation/fields.h"

namespace tutti::simulation {

namespace {

// Returns the fields that differ from `defaults`, as in " size=3 latency=50".
template <class T>
std::string changed_fields(const T& value, const T& defaults) {
  std::vector<int64_t> usual;
  for_each_field(defaults,
                 [&](const char*, auto& field) { usual.push_back(static_cast<int64_t>(field)); });
  std::string text;
  size_t i = 0;
  for_each_field(value, [&](const char* name, auto& field) {
    if (static_cast<int64_t>(field) != usual[i++])
      text += fmt::format(" {}={}", name, static_cast<int64_t>(field));
  });
  return text;
}

std::string to_text(const Operation& operation) {
  const Operation usual;
  std::string text =
      fmt::format("{} {} {}", operation.name, tutti::to_string(operation.kind), operation.rows);
  if (operation.width != 0) text += fmt::format("x{}", operation.width);
  if (operation.dtype != usual.dtype)
    text += fmt::format(" dtype={}", tutti::to_string(operation.dtype));
  if (operation.op != usual.op)
    text += fmt::format(" op={}", kReduceOpNames[static_cast<size_t>(operation.op)]);
  if (operation.root != usual.root) text += fmt::format(" root={}", operation.root);
  if (!operation.splits.empty())
    text += fmt::format(" splits={}", fmt::join(operation.splits, "/"));
  if (operation.contents != 0) text += fmt::format(" c={}", operation.contents);
  return text;
}

std::string to_text(const Action& action) {
  std::string text(kActionNames[static_cast<size_t>(action.kind)]);
  if (!action.text.empty()) text += " text=" + action.text;
  if (action.time != 0) text += fmt::format(" time={}", action.time);
  for (size_t i = 0; i < action.operations.size(); ++i)
    text += (i == 0 ? " " : ", ") + to_text(action.operations[i]);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(at);
    auto part = text.substr(0, end);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    if (!part.empty()) parts.push_back(part);
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

int64_t number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument(fmt::format("\"{}\" is no number", text));
  return value;
}

template <class Names>
size_t place_in(const Names& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::invalid_argument(fmt::format("\"{}\" is unknown", name));
  return static_cast<size_t>(found - names.begin());
}

// Splits "key=value". Without "=" the key is empty.
std::pair<std::string_view, std::string_view> key_and_value(std::string_view word) {
  const size_t sign = word.find('=');
  if (sign == word.npos) return {{}, word};
  return {word.substr(0, sign), word.substr(sign + 1)};
}

template <class T>
void set_field(T& value, std::string_view word) {
  const auto [key, text] = key_and_value(word);
  bool known = false;
  for_each_field(value, [&, key = key, text = text](const char* name, auto& field) {
    if (key != name) return;
    known = true;
    field = static_cast<std::remove_reference_t<decltype(field)>>(number_of(text));
  });
  if (!known) throw std::invalid_argument(fmt::format("\"{}\" is unknown", word));
}

Operation parse_operation(std::span<const std::string_view> words) {
  if (words.size() < 3)
    throw std::invalid_argument("an operation has a name, a kind and a shape at least");
  Operation operation;
  operation.name = words[0];
  std::vector<std::string_view> kinds, types;
  for (int i = 0; i < kCollectiveKindCount; ++i)
    kinds.push_back(tutti::to_string(static_cast<CollectiveKind>(i)));
  for (int i = 0; i < kDataTypeCount; ++i)
    types.push_back(tutti::to_string(static_cast<DataType>(i)));
  operation.kind = static_cast<CollectiveKind>(place_in(kinds, words[1]));
  const auto extents = split(words[2], 'x');
  operation.rows = number_of(extents.at(0));
  if (extents.size() > 1) operation.width = number_of(extents[1]);
  for (const auto word : words.subspan(3)) {
    const auto [key, text] = key_and_value(word);
    if (key == "dtype")
      operation.dtype = static_cast<DataType>(place_in(types, text));
    else if (key == "op")
      operation.op = static_cast<ReduceOp>(place_in(kReduceOpNames, text));
    else if (key == "root")
      operation.root = static_cast<int32_t>(number_of(text));
    else if (key == "c")
      operation.contents = static_cast<uint32_t>(number_of(text));
    else if (key == "splits")
      for (const auto part : split(text, '/')) operation.splits.push_back(number_of(part));
    else
      throw std::invalid_argument(fmt::format("\"{}\" is unknown", word));
  }
  return operation;
}

Action parse_action(std::string_view text) {
  Action action;
  bool is_first = true;
  for (const auto part : split(text, ',')) {
    const auto list = split(part, ' ');
    std::span<const std::string_view> words(list);
    if (is_first) {
      action.kind = static_cast<Action::Kind>(place_in(kActionNames, words[0]));
      words = words.subspan(1);
      is_first = false;
      while (!words.empty()) {
        const auto [key, value] = key_and_value(words[0]);
        if (key == "text")
          action.text = value;
        else if (key == "time")
          action.time = number_of(value);
        else
          break;
        words = words.subspan(1);
      }
      if (words.empty()) continue;
    }
    action.operations.push_back(parse_operation(words));
  }
  return action;
}

void parse_line(Case& into, std::string_view line) {
  const auto words = split(line, ' ');
  if (words[0] == "world") {
    for (size_t i = 1; i < words.size(); ++i) set_field(into.world, words[i]);
    into.ranks.resize(static_cast<size_t>(into.world.size));
  } else if (words[0] == "fault" && words.size() > 1) {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(place_in(kFaultNames, words[1]));
    for (size_t i = 2; i < words.size(); ++i) set_field(fault, words[i]);
    into.faults.push_back(fault);
  } else if (words[0] == "ranks" && line.find(':') != line.npos) {
    const size_t colon = line.find(':');
    Script script;
    for (const auto action : split(line.substr(colon + 1), ';'))
      script.push_back(parse_action(action));
    for (const auto rank : split(line.substr(5, colon - 5), ','))
      into.ranks.at(static_cast<size_t>(number_of(rank))).push_back(script);
  } else {
    throw std::invalid_argument("a line begins with world, ranks or fault");
  }
}

}  // namespace

std::string to_text(const Case& from) {
  std::string text = "world" + changed_fields(from.world, World{}) + "\n";
  size_t most = 0;
  for (const auto& scripts : from.ranks) most = std::max(most, scripts.size());
  for (size_t place = 0; place < most; ++place) {
    std::vector<bool> written(from.ranks.size());
    for (size_t rank = 0; rank < from.ranks.size(); ++rank) {
      if (written[rank] || from.ranks[rank].size() <= place) continue;
      const Script& script = from.ranks[rank][place];
      std::vector<size_t> alike;
      for (size_t other = rank; other < from.ranks.size(); ++other)
        if (from.ranks[other].size() > place && from.ranks[other][place] == script) {
          written[other] = true;
          alike.push_back(other);
        }
      std::string actions;
      for (const auto& action : script) actions += (actions.empty() ? "" : "; ") + to_text(action);
      text += fmt::format("ranks {}: {}\n", fmt::join(alike, ","), actions);
    }
  }
  for (const auto& fault : from.faults)
    text += fmt::format("fault {}{}\n", kFaultNames[static_cast<size_t>(fault.kind)],
                        changed_fields(fault, Fault{}));
  return text;
}

Case parse(std::string_view text) {
  Case result;
  result.ranks.resize(static_cast<size_t>(result.world.size));
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (split(line, ' ').empty() || line.starts_with('#')) continue;
    try {
      parse_line(result, line);
    } catch (const std::exception& error) {
      throw std::invalid_argument(fmt::format("line {}: {}", number, error.what()));
    }
  }
  const auto& world = result.world;
  if (world.over_memory && !world.over_streams)
    throw std::invalid_argument("shared memory is beside streams (over_memory, over_streams)");
  if (world.over_memory && (world.chunk_bytes % 64 != 0 || world.chunk_bytes < 64 * world.size ||
                            world.one_shot_bytes > world.chunk_bytes || world.in_place_bytes < 96))
    throw std::invalid_argument("no chunks can be like that (see tutti::Geometry)");
  for (const auto& fault : result.faults)
    if (result.world.over_streams && fault.kind == Fault::Kind::operation_fails)
      throw std::invalid_argument("over streams no operation fails by itself (operation_fails)");
  return result;
}

}  // namespace tutti::simulation
