#include "tutti/backends/choice/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tutti/backends/stream/joint_transport.h"
#include "tutti/base/error.h"
#include "tutti/collectives/chooser.h"

namespace tutti {

namespace {

using Backends = std::vector<std::unique_ptr<Backend>>;

std::vector<JointTransport::Part> parts_of(const Backends& backends) {
  std::vector<JointTransport::Part> parts;
  for (const auto& backend : backends)
    if (auto* transport = backend->transport()) parts.push_back({transport});
  return parts;
}

struct ChoiceInheritance final : Inheritance {
  std::vector<std::shared_ptr<Inheritance>> each;  // one per backend, in the order of the backends
};

class ChoiceBackend final : public Backend {
 public:
  /// `names` has the names of `backends`, in the same order.
  ChoiceBackend(const Context& context, Backends backends, const std::vector<std::string>& names)
      : chooser_(context.algorithms, context.determinism),
        backends_(std::move(backends)),
        transport_(parts_of(backends_)) {
    for (const auto& backend : backends_) poller_.watch(backend->descriptor(), EPOLLIN);
    for (const auto& score : chooser_.scores()) {
      const auto found = std::find(names.begin(), names.end(), score.backend);
      chosen_.push_back(score.backend.empty() ? 0 : static_cast<size_t>(found - names.begin()));
      if (chosen_.back() > 0) is_divided_[static_cast<size_t>(score.kind)] = true;
    }
    name_ = fmt::format("{}", fmt::join(names, ","));
  }
  ~ChoiceBackend() override {
    for (const auto& backend : backends_) poller_.forget(backend->descriptor());
  }

  // The first backend is progressed last. A peer that leaves reports this through the first backend
  // before it closes the other ones.
  bool progress() override {
    bool moved = false;
    for (auto backend = backends_.rbegin(); backend != backends_.rend(); ++backend)
      moved |= (*backend)->progress();
    return moved;
  }
  bool arm() override {
    return std::all_of(backends_.begin(), backends_.end(),
                       [](const auto& backend) { return backend->arm(); });
  }
  int descriptor() const override { return poller_.descriptor(); }
  void abort(const Error& error) noexcept override {
    for (const auto& backend : backends_) backend->abort(error);
  }

  Capabilities capabilities() const override {
    auto own = backends_.front()->capabilities();
    own.name = name_;
    return own;
  }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return backends_.front()->allocate(bytes, device);
  }
  // The caller asks before the ranks have agreed on the operation, so its backend is not known yet.
  // The result is therefore false unless the first backend runs allreduces of all sizes.
  bool shares(const std::byte* data, size_t bytes) const override {
    return !is_divided(CollectiveKind::allreduce) && backends_.front()->shares(data, bytes);
  }
  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    if (is_divided(collective.kind) && !launch.name.empty()) return false;
    return choose(collective, launch).packs_itself(collective, launch);
  }
  bool works_elsewhere() const override {
    return std::any_of(backends_.begin(), backends_.end(),
                       [](const auto& backend) { return backend->works_elsewhere(); });
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    return choose(collective, launch).start(collective, launch);
  }
  Traffic predict(const Collective& collective, const Launch& launch) override {
    return choose(collective, launch).predict(collective, launch);
  }
  std::string_view algorithm(const Collective& collective) const override {
    return choose(collective).algorithm(collective);
  }
  std::string name_for(const Collective& collective) const override {
    return choose(collective).name_for(collective);
  }
  std::vector<int> missing(int queue) const override { return backends_.front()->missing(queue); }
  Transport* transport() override { return &transport_; }
  TransportCounters counters() override {
    TransportCounters sum;
    for (const auto& backend : backends_) add(sum, backend->counters());
    return sum;
  }
  std::shared_ptr<Inheritance> split(const Context& context, int color, int key) override {
    auto inheritance = std::make_shared<ChoiceInheritance>();
    for (size_t i = 0; i < backends_.size(); ++i) {
      auto own = context;
      own.store = make_prefix_store(context.store, std::to_string(i) + "/");
      inheritance->each.push_back(backends_[i]->split(own, color, key));
    }
    return inheritance;
  }

 private:
  bool is_divided(CollectiveKind kind) const { return is_divided_[static_cast<size_t>(kind)]; }
  // An operation on a device runs in the first backend, because only that backend reported its
  // devices.
  Backend& choose(const Collective& collective, const Launch& launch) const {
    return launch.device != nullptr ? *backends_.front() : choose(collective);
  }
  Backend& choose(const Collective& collective) const {
    const auto* score = chooser_.find(collective.kind, agreed_bytes(collective));
    if (score == nullptr) return *backends_.front();
    return *backends_[chosen_[static_cast<size_t>(score - chooser_.scores().data())]];
  }

  const Chooser chooser_;
  const Backends backends_;
  JointTransport transport_;
  std::vector<size_t> chosen_;  // by score: index of the backend
  // By kind: true if operations of some sizes run in a backend other than the first.
  std::array<bool, kCollectiveKindCount> is_divided_{};
  std::string name_;
  Poller poller_;
};

// Returns the scores for one backend, without the backend's name.
std::string scores_for(const Chooser& all, const std::string& name, bool is_first) {
  std::string scores;
  for (const auto& score : all.scores()) {
    if (score.backend.empty() ? !is_first : score.backend != name) continue;
    scores += (scores.empty() ? "" : ";") + score.text;
  }
  return scores;
}

}  // namespace

std::unique_ptr<Backend> connect_choice(const Context& context) {
  const Chooser chooser(context.algorithms, context.determinism);
  std::vector<std::string> names = {context.name};
  for (const auto& score : chooser.scores())
    if (!score.backend.empty() &&
        std::find(names.begin(), names.end(), score.backend) == names.end())
      names.push_back(score.backend);
  const auto inheritance = std::dynamic_pointer_cast<ChoiceInheritance>(context.inheritance);
  Backends backends;
  for (const auto& name : names) {
    const auto* plugin = context.plugin(name);
    if (plugin == nullptr)
      throw Error(ErrorCode::unavailable, fmt::format("there is no backend \"{}\" here", name));
    auto own = context;
    own.name = name;
    own.algorithms = scores_for(chooser, name, backends.empty());
    if (inheritance) own.inheritance = inheritance->each.at(backends.size());
    if (!backends.empty()) own.store = make_prefix_store(context.store, "choice/" + name + "/");
    backends.push_back(plugin->connect(own));
  }
  if (backends.size() == 1) return std::move(backends.front());
  return std::make_unique<ChoiceBackend>(context, std::move(backends), names);
}

}  // namespace tutti
