#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tutti/backends/backend.h"

namespace tutti::test {

/// Forwards everything to another backend. A test derives from it to change one thing.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> rest) : rest_(std::move(rest)) {}
  bool progress() override { return rest_->progress(); }
  bool arm() override { return rest_->arm(); }
  int descriptor() const override { return rest_->descriptor(); }
  void abort(const Error& error) noexcept override { rest_->abort(error); }
  Capabilities capabilities() const override { return rest_->capabilities(); }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return rest_->allocate(bytes, device);
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    return rest_->start(collective, launch);
  }
  std::string_view algorithm(const Collective& collective) const override {
    return rest_->algorithm(collective);
  }
  Transport* transport() override { return rest_->transport(); }

 protected:
  Backend& rest() const { return *rest_; }

 private:
  const std::unique_ptr<Backend> rest_;
};

/// The same of all that a backend may also leave out.
class TransparentBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool shares(const std::byte* data, size_t bytes) const override {
    return rest().shares(data, bytes);
  }
  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    return rest().packs_itself(collective, launch);
  }
  Traffic predict(const Collective& collective, const Launch& launch) override {
    return rest().predict(collective, launch);
  }
  bool works_elsewhere() const override { return rest().works_elsewhere(); }
  std::vector<int> missing(int queue) const override { return rest().missing(queue); }
  TransportCounters counters() override { return rest().counters(); }
};

/// Leaves everything to another operation.
class ForwardingOperation : public Operation {
 public:
  explicit ForwardingOperation(OperationPtr rest) : rest_(std::move(rest)) {}
  OperationState advance() override { return rest_->advance(); }
  void cancel() override { rest_->cancel(); }
  const Error* failure() const override { return rest_->failure(); }
  bool lacks_ranks() const override { return rest_->lacks_ranks(); }
  bool is_on_its_way() const override { return rest_->is_on_its_way(); }

 private:
  const OperationPtr rest_;
};

}  // namespace tutti::test
