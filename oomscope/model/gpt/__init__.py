"""The GPT: its layers put together into the stage that one pipeline rank holds."""
