#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tutti/backends/gloo/mesh.h"
#include "tutti/collectives/collective.h"

namespace tutti {

enum class GlooAllreduce { ring, halving_doubling };

/// Calls Gloo for collectives, one after another, in the same order on all ranks. Each call blocks
/// until the collective is complete. The caller must still scale the output of a reduction. Throws
/// what Gloo throws.
class GlooCaller {
 public:
  explicit GlooCaller(std::shared_ptr<GlooMesh> mesh);
  ~GlooCaller();
  /// `number` differs between consecutive calls and is equal on all ranks that take part.
  void call(const Collective& collective, uint32_t number, GlooAllreduce algorithm);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace tutti
