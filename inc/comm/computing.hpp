/// @file Facts about computation that communication needs.
#pragma once

namespace brume::comm {

/// Says, while it lives, that a thread of this process computes: messages may wait.
class Computing {
 public:
  Computing();
  ~Computing();
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;
};

}  // namespace brume::comm
