#include <fmt/format.h>

#include <algorithm>

#include "tests/explore/run/run.h"

namespace tutti::explore {

std::string Run::thread_name(int thread) const {
  return thread == 0 ? "the model" : threads_[thread].now.model->name;
}

std::string Run::describe(const void* object, int known) const {
  for (auto name = names_.rbegin(); name != names_.rend(); ++name)
    if (name->first == object) return name->second;
  if (known < 0) {
    const auto found = std::find_if(plain_.begin(), plain_.end(),
                                    [&](const Plain& plain) { return plain.data == object; });
    return fmt::format("data {}", found - plain_.begin() + 1);
  }
  constexpr std::array kKinds = {"atomic", "mutex", "condition", "bell"};
  return fmt::format("{} {}", kKinds[static_cast<size_t>(objects_[known].kind)],
                     objects_[known].of_its_kind);
}

std::string Run::who_waits() const {
  std::string text;
  const auto add = [&](int i, std::string what) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", thread_name(i), what);
  };
  const auto number = [&](const Object* object) { return static_cast<int>(object->number()); };
  for (int i = 1; i < count_; ++i) {
    const auto& thread = threads_[i].now;
    if (thread.state == State::locking || thread.state == State::waiting) {
      std::string what = thread.state == State::locking
                             ? "waits for " + describe(thread.lock, number(thread.lock))
                             : "waits on " + describe(thread.at, number(thread.at));
      if (thread.state == State::locking && thread.lock->owner_ >= 0)
        what += fmt::format(" that {} holds", thread_name(thread.lock->owner_));
      add(i, what);
    } else if (thread.state == State::awaiting) {
      add(i, "waits for a notify of " + describe(thread.at, number(thread.at)));
    } else if (thread.state == State::listening) {
      add(i, "listens to " + describe(thread.at, number(thread.at)));
    } else if (thread.state == State::paused) {
      add(i, "looks again and again");
    }
  }
  return text;
}

std::string Run::written_trace() const {
  std::string text;
  for (const auto& step : steps_) {
    text += fmt::format("  {:<12} {}", thread_name(step.thread), step.operation);
    if (step.object != nullptr) text += " " + describe(step.object, step.known);
    if (step.value) text += fmt::format(" = {}", *step.value);
    if (*step.how != 0) text += fmt::format(" {}", step.how);
    text += "\n";
  }
  return text;
}

}  // namespace tutti::explore
