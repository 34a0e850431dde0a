"""The sequencer's interface and its values: what agents, caches and the compactor may call.

`interface.Sequencer` has the methods; the other modules have their errors and values. Every method takes one struct and
returns one, so the RPC server and client need no code per method. Structs are `array_like`: fields are only ever
appended, with defaults.

`request_id` identifies a request across all its retries: every retry gets the first answer (sequencer.rules.repeats).
SequencerClient sets it on each request that has the field and no value for it.

Timestamps are milliseconds since the Unix epoch; `end_offset` is exclusive, `last_offset` inclusive.
"""
