"""What the Streamlit pages are made of."""
