#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "tutti/backends/store.h"

namespace c10d {
class Store;
}

namespace tutti::torch {

/// A store of torch's as one of Tutti's, made of what every one of torch's has: set, get, check,
/// add, compareSet and deleteKey. Any thread. It waits by looking, since a wait of torch's holds a
/// client's only connection. Torch's lists no keys, so erase_all() leaves them. Errors of torch's
/// become Error(unavailable).
std::shared_ptr<Store> make_torch_store(::c10::intrusive_ptr<::c10d::Store> store);

}  // namespace tutti::torch
