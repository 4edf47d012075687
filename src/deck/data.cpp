/// @file Keys of [data].
#include "tables.hpp"

namespace brume::deck {

const Schema<DataKeys>& data_schema() {
  static const auto schema = [] {
    return Schema<DataKeys>()
        .key("train", &DataKeys::train, {.help = "token file for training", .if_given = true})
        .key("files", &DataKeys::files,
             {.help = "token files for training instead of train, whose samples are mixed"})
        .key("mixture", &DataKeys::weights,
             {.help = "mixture weights of files, relative; []: by number of tokens, or of pairs",
              .min = 1e-6,
              .max = 1e12,
              .aliases = {"weights"}})
        .key("valid", &DataKeys::valid, {.help = "token file for validation; empty: none"})
        .key("order", &DataKeys::order,
             {.help = "order of the samples", .choices = {"sequential", "shuffled"}})
        .key("documents", &DataKeys::documents,
             {.help = "packed documents; join: attention crosses documents; isolate: it does "
                      "not, and positions restart (on GPUs with Brume's kernels, not cuDNN's)",
              .choices = {"join", "isolate"}})
        .key("begin_token", &DataKeys::begin_token,
             {.help = "id of the token that starts a document, for token files without document "
                      "boundaries; -1: none",
              .min = -1,
              .aliases = {"bos_token"}})
        .key("end_token", &DataKeys::end_token,
             {.help = "id of the token that ends a document, for token files without document "
                      "boundaries; -1: none",
              .min = -1,
              .aliases = {"eos_token"}})
        .key("eval_every", &DataKeys::eval_every,
             {.unit = "steps", .help = "steps between validations; 0: only at the end", .min = 0})
        .key("eval_sequences", &DataKeys::eval_sequences,
             {.unit = "sequences",
              .help = "sequences per validation, the same each time; at most the file's",
              .min = 1,
              .max = 1 << 24});
  }();
  return schema;
}

}  // namespace brume::deck
