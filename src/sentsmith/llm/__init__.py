"""Language models as writers: what they add to a corpus.

The rooms, in the order of a request:

    what is asked      prompts → questions            a prompt file, and one question with the key of its answer
    who answers        backend: local | remote        opened by ``opening`` from what stands after ``--llm``
      local            tokenising, decoding, guidance, cache, loading
      remote           endpoint
    asking             answering, spending, estimating   each question once; a budget; what it would take
    what is kept       ledger → parsing → outputs     every answer; what is read from it; the files it becomes
    translation        translation, echoes            encoder-decoders that translate there and back
"""
