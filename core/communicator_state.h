#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "tutti/core/bootstrap.h"
#include "tutti/core/communicator.h"
#include "tutti/core/staging.h"

namespace tutti {

/// What a Communicator owns, and the one way from its calls to the engine.
class CommunicatorState {
 public:
  CommunicatorState(Options options, Membership membership);
  ~CommunicatorState();

  /// Makes an entry of this communicator; checks what this rank alone can see.
  std::unique_ptr<Entry> entry(std::string_view name, CollectiveKind kind, TensorView input,
                               TensorView output) const;
  void check_tensor(std::string_view name, const TensorView& view) const;
  Work submit(std::unique_ptr<Entry> entry, bool ring = true);
  Work submit_group(std::string_view group, std::vector<std::unique_ptr<Entry>> entries);
  void check_root(std::string_view name, int root) const;

  struct Declared {
    std::string name;
    Shape shape;
    DataType dtype;
  };
  int64_t declare(Declared declared);
  const Declared& declared(int64_t id) const;

  const Options options;
  Membership membership;
  std::shared_ptr<Engine> engine;
  int local_rank = 0;
  int local_size = 1;
  int hosts = 1;
  int splits = 0;  // calls of split so far, equal on all ranks
  int epoch = 0;
  std::string path;           // of this communicator in the store
  std::string timeline_file;  // of start_timeline

 private:
  Staging& staging(Device device);

  mutable std::mutex mutex_;  // guards the following
  std::vector<std::unique_ptr<Declared>> declared_;
  std::vector<std::pair<Device, std::unique_ptr<Staging>>> stagings_;
};

}  // namespace tutti
