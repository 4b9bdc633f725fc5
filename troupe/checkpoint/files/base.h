// The base of a checkpoint: the one that has the frozen weights. A run that trains adapters beside
// the weights of another checkpoint saves what it trains alone. Its manifest says where the base
// is, as the run was told and from the run's own folder, so that both may be moved together; and
// the hash of the base's tensors, so that no other weights are taken for them.
#pragma once

#include <string>

#include "troupe/checkpoint/files/manifest.h"

namespace troupe {

// Of the names, types, sizes and bytes of all its tensors, which the index files have.
std::string base_hash(const Manifest& manifest);

// What a manifest says of its base: the checkpoint `folder`, of a run whose own folder is `run`.
BaseCheckpoint base_of(const std::string& folder, const Manifest& manifest, const std::string& run);

// The manifest of the checkpoint `folder`, with the shards of its base, and of that one's, behind
// its own; without a base, as it is. Looks for the base where the manifest says, and in `moved_to`
// where that is not empty: `base->folder` is then the first place where the hash is right. E4010
// names all of them where it is in none.
Manifest with_base(Manifest manifest, const std::string& folder, const std::string& moved_to = "");

}  // namespace troupe
