#include "tutti/adapters/nn/training_state.h"

#include <fmt/format.h>

#include <set>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::nn {

namespace {

const std::string& word_of(const std::map<std::string, std::string>& words,
                           const std::string& name) {
  const auto found = words.find(name);
  if (found == words.end())
    throw Error(ErrorCode::corrupt_data,
                fmt::format("the checkpoint has no word \"{}\", which this training saves; load "
                            "one of the same training",
                            name));
  return found->second;
}

LoaderPosition position_in(const std::map<std::string, std::string>& words) {
  const auto number = [&](const char* name) {
    const auto& text = word_of(words, name);
    const auto value = parse_integer(text, 0, int64_t{1} << 62);
    if (!value)
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("the checkpoint's word \"{}\" is \"{:.30}\", expected a whole number",
                              name, text));
    return *value;
  };
  return {number("loader.epoch"), number("loader.step"), number("loader.consumed"),
          number("loader.order")};
}

}  // namespace

std::vector<PlacedTensor> TrainingState::tensors() const {
  auto all = trained_();
  std::set<std::string> names;
  for (const auto& tensor : all) names.insert(tensor.name);
  // Adds the parameters that the optimizer does not have.
  for (auto* parameter : model_.layers_->parameters())
    if (names.insert("parameter." + parameter->name).second)
      all.push_back({"parameter." + parameter->name, parameter->value, {parameter->value.shape()}});
  // The buffers differ from rank to rank, since each rank fills them from its own batches.
  for (const auto& buffer : model_.buffers())
    all.push_back({"buffer." + buffer.name,
                   buffer.tensor,
                   {buffer.tensor.shape(), Held::own, comm_.size(), comm_.rank()}});
  for (const auto& part : more_)
    for (auto& tensor : part()) all.push_back(std::move(tensor));
  return all;
}

std::map<std::string, std::string> TrainingState::words() const {
  Words words;
  for (const auto& say : say_) say(words);
  return words;
}

std::optional<LoadedCheckpoint> TrainingState::load(CheckpointFolder& checkpoints,
                                                    const LoadOptions& options) {
  auto checked = options;
  checked.check = [&](const Words& words) {
    for (const auto& check : check_) check(words);
    if (options.check) options.check(words);
  };
  auto found = checkpoints.load(tensors(), checked);
  if (!found) return {};
  for (const auto& restore : restore_) restore(found->words);
  for (const auto& loaded : loaded_) loaded();
  return found;
}

void TrainingState::add(StepAgreement& agreement) {
  more_.emplace_back([&agreement] {
    std::vector<PlacedTensor> all;
    for (const auto& state : agreement.state())
      all.push_back({state.name, state.tensor, {state.tensor.shape()}});
    return all;
  });
}

void TrainingState::add(DataLoader& loader) {
  say_.emplace_back([&loader](Words& words) {
    const auto position = loader.position();
    words["loader.epoch"] = std::to_string(position.epoch);
    words["loader.step"] = std::to_string(position.step);
    words["loader.consumed"] = std::to_string(position.consumed);
    words["loader.order"] = std::to_string(position.order);
  });
  check_.emplace_back([](const Words& words) { position_in(words); });
  restore_.emplace_back([&loader](const Words& words) { loader.restore(position_in(words)); });
}

void TrainingState::add(Sampler& sampler) {
  say_.emplace_back([&sampler](Words& words) { words["sampler"] = sampler.state(); });
  // The check reads into an object of its own, so that the caller's sampler stays unchanged.
  check_.emplace_back(
      [&sampler](const Words& words) { Sampler(sampler).restore(word_of(words, "sampler")); });
  restore_.emplace_back(
      [&sampler](const Words& words) { sampler.restore(word_of(words, "sampler")); });
}

}  // namespace tutti::nn
