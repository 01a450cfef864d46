"""The layers of the DeepSeek-V4.1-Flash architecture, one file per mechanism."""
